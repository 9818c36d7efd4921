"""The requests that clients have sent to a test broker, for assertions."""

import datetime
from collections import Counter, deque
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

import attrs

from kwire.testing.errors import BrokerError
from kwire.testing.faults import check_api

REQUESTS_MAX: Final = 10_000
SHOWN_MAX: Final = 20
"""The lines of requests in the message of an assertion."""


class ReceivedRequest(NamedTuple):
    """A request of a client; requests between brokers are not recorded."""

    api: str
    """Kafka's name of the API, such as Produce."""
    version: int
    client_id: str
    time_ms: int
    """The broker's wall clock."""
    node: int

    @property
    def kind(self) -> tuple[str, int, str, int]:
        """All fields except the time, for comparing requests."""
        return self.api, self.version, self.client_id, self.node


def in_lines(requests: Iterable[ReceivedRequest]) -> list[str]:
    """Return one line for each request, or for each run of equal requests."""
    lines = []
    for (api, version, client_id, node), run in groupby(requests, lambda each: each.kind):
        times_ms = [request.time_ms for request in run]
        # In local time, like the broker's log.
        at = datetime.datetime.fromtimestamp(times_ms[0] / 1000, datetime.UTC).astimezone()
        time = f"{at:%H:%M:%S}.{times_ms[0] % 1000:03}"
        client = client_id or "(no client id)"
        count = f", {len(times_ms)} times" if len(times_ms) > 1 else ""
        lines.append(f"{time} {api} v{version} of {client} at node {node}{count}")
    return lines


@attrs.define(eq=False, repr=False)
class RequestLog:
    """The newest 10,000 requests, oldest first."""

    _requests: deque[ReceivedRequest] = attrs.field(factory=lambda: deque(maxlen=REQUESTS_MAX))
    total: int = 0
    """The number of all requests so far, also of those that :meth:`clear` has removed."""

    def add(self, request: ReceivedRequest) -> None:
        self._requests.append(request)
        self.total += 1

    def clear(self) -> None:
        """Clear the record."""
        self._requests.clear()

    def of(self, api: str | None = None, *, client_id: str | None = None) -> list[ReceivedRequest]:
        """Return the requests of one API or client, or all of them; raise BrokerError on a typo."""
        if api is not None:
            check_api(api)
        return [
            request
            for request in list(self._requests)  # A copy: the broker's thread adds more.
            if api in (None, request.api) and client_id in (None, request.client_id)
        ]

    def count(self, api: str | None = None, *, client_id: str | None = None) -> int:
        """Return the number of the requests that :meth:`of` returns."""
        return len(self.of(api, client_id=client_id))

    def lines(self, count: int) -> list[str]:
        """Return the newest requests as lines; a run of equal requests is one line."""
        return in_lines(self.of()[-count:]) if count > 0 else []

    def assert_count(
        self,
        api: str | None = None,
        exactly: int | None = None,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        client_id: str | None = None,
    ) -> None:
        """Raise AssertionError unless this many requests arrived; the message lists them."""
        if exactly is None and at_least is None and at_most is None:
            raise BrokerError("assert_count needs exactly, at_least or at_most")
        requests = self.of(api, client_id=client_id)
        count = len(requests)
        limits = (
            (exactly, "", count == exactly),
            (at_least, "at least ", at_least is None or count >= at_least),
            (at_most, "at most ", at_most is None or count <= at_most),
        )
        wrong = [
            f"{words}{number}" for number, words, fits in limits if number is not None and not fits
        ]
        if not wrong:
            return
        what = " ".join(filter(None, (api, "requests", client_id and f"of {client_id}")))
        lines = [f"expected {wrong[0]} {what}, saw {count}", *self._context(requests)]
        raise AssertionError("\n  ".join(lines))

    def _context(self, requests: list[ReceivedRequest]) -> list[str]:
        """Return the last of these requests as lines, and the numbers of all other kinds."""
        lines = in_lines(requests)
        if len(lines) > SHOWN_MAX:
            lines = [f"({len(lines) - SHOWN_MAX} earlier lines)", *lines[-SHOWN_MAX:]]
        same = set(requests)
        others = Counter(each.api for each in self.of() if each not in same)
        if others:
            counts = ", ".join(f"{count} {api}" for api, count in sorted(others.items()))
            lines.append(f"other requests: {counts}")
        elif not requests:
            lines.append("no other requests either")
        return lines
