"""Limits the connections of one listener whose clients have not logged in yet (SASL).

Such clients use memory and descriptors before it is known who they are. Rules:

* A frame has at most :data:`FRAME_BYTES_MAX`, and less if ``sasl.server.max.receive.size`` is less:
  no mechanism needs more, and such a frame gets no pooled buffer.
* A client that has not logged in after :data:`LOG_IN_S` is disconnected.
* At most :data:`GUESTS_MAX` clients may be about to log in. If there are more, the client that has
  not sent a whole request for the longest time is disconnected, so that a flood of silent
  connections locks nobody out.

A guest is identified by its framer, so that a connection's requests need not refer to the
connection.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

from kwire.net.framing import Framer

FRAME_BYTES_MAX: Final = 16 << 10
LOG_IN_S: Final = 30.0
"""The time for which Kafka's clients wait by default for a connection or a request."""
GUESTS_MAX: Final = 2048
"""Enough for thousands of clients that reconnect together."""


class Guest(Protocol):
    """The part of a connection that this module uses."""

    framer: Framer
    scope: trio.CancelScope
    reason: str

    def close(self, reason: str) -> None: ...


@attrs.define(eq=False, repr=False)
class Guests:
    """The connections whose clients have not logged in."""

    now: Callable[[], float] = trio.current_time
    _guests: dict[Framer, Guest] = attrs.field(factory=dict)
    """By framer, those that have been silent for longest first."""

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, guest: Guest) -> None:
        """Start to limit a new connection; this may disconnect another one."""
        guest.framer.max_bytes = min(FRAME_BYTES_MAX, guest.framer.max_bytes)
        guest.scope.deadline = self.now() + LOG_IN_S
        self._guests[guest.framer] = guest
        if len(self._guests) > GUESTS_MAX:
            self._guests.pop(next(iter(self._guests))).close("no login, and others wait")

    def on_request(self, framer: Framer) -> None:
        """Record that a client has sent a whole request."""
        guest = self._guests.pop(framer, None)
        if guest is not None:
            self._guests[framer] = guest

    def on_login(self, framer: Framer) -> None:
        """Stop limiting the connection of a client that has logged in."""
        guest = self._guests.pop(framer, None)
        if guest is not None:
            guest.scope.deadline = math.inf

    def leave(self, guest: Guest) -> None:
        """Remove a closed connection; record the reason if its time was up."""
        if self._guests.pop(guest.framer, None) is not None and self.now() >= guest.scope.deadline:
            guest.reason = guest.reason or f"no login within {LOG_IN_S:.0f} seconds"
