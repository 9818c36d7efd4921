"""The requests that clients have sent to a test broker, for assertions."""

from collections import deque
from typing import Final, NamedTuple

import attrs

REQUESTS_MAX: Final = 10_000


class ReceivedRequest(NamedTuple):
    """A request of a client; requests between brokers are not recorded."""

    api: str
    """Kafka's name of the API, such as Produce."""
    version: int
    client_id: str
    time_ms: int
    """The broker's wall clock."""
    node: int


@attrs.define(eq=False, repr=False)
class RequestLog:
    """The newest 10,000 requests, oldest first."""

    _requests: deque[ReceivedRequest] = attrs.field(factory=lambda: deque(maxlen=REQUESTS_MAX))

    def add(self, request: ReceivedRequest) -> None:
        self._requests.append(request)

    def clear(self) -> None:
        """Clear the record."""
        self._requests.clear()

    def of(self, api: str | None = None, *, client_id: str | None = None) -> list[ReceivedRequest]:
        """Return the requests of one API or client, or all of them."""
        return [
            request
            for request in list(self._requests)  # A copy: the broker's thread adds more.
            if api in (None, request.api) and client_id in (None, request.client_id)
        ]

    def count(self, api: str | None = None, *, client_id: str | None = None) -> int:
        """Return the number of the requests that :meth:`of` returns."""
        return len(self.of(api, client_id=client_id))
