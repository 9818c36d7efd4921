"""The proof that a broker's process has ended, from one node's connections to it.

When a process ends, its connections and listeners close, and its host refuses new connections.
Rules:

* Only an address that has accepted a connection during this broker epoch can prove anything, and
  only the numeric address of that connection: by now, its name may resolve to another host.
* The proof is two refusals in a row, at least :data:`BETWEEN_REFUSALS_S` apart. A time-out, an
  unreachable host or an accepted connection resets the count.
* While the connection is open, nothing is sent and no timer runs.

The caller connects when an attempt is ``due`` and reports the result.
"""

import math
from typing import Final

import attrs

BETWEEN_REFUSALS_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
"""The longest time between attempts to reach a broker that has never accepted a connection."""
REFUSED_MAX_S: Final = 1.0
"""The longest time between attempts to reach a broker that refuses connections."""
SHORT_LIVED_S: Final = 1.0
"""After a connection shorter than this, the next attempt is delayed."""

Address = tuple[str, int]


@attrs.frozen(repr=False)
class EndedProcess:
    """The proof that the process of one incarnation of a broker has ended."""

    broker_id: int
    broker_epoch: int
    refused_at: float
    """The time of the first of the two refusals."""


@attrs.define(eq=False, repr=False)
class ProcessProbe:
    """One node's connections to the process of one incarnation of a broker."""

    broker_id: int
    broker_epoch: int
    due: float
    """The time of the next attempt to connect; infinite while a connection is open."""
    address: Address | None = None
    """The numeric address that accepted the last connection."""
    _accepted_at: float = 0.0
    _failure_count: int = 0
    _refusals: tuple[float, ...] = ()
    """The times of the latest refusals in a row, at most two."""

    @property
    def proof(self) -> EndedProcess | None:
        """The proof that the process has ended; None while there is no proof."""
        if len(self._refusals) < 2:
            return None
        return EndedProcess(self.broker_id, self.broker_epoch, self._refusals[0])

    def on_accepted(self, address: Address, now: float) -> None:
        """Record that a numeric address accepted a connection."""
        self.address, self._accepted_at, self._refusals = address, now, ()
        self.due = math.inf

    def on_ended(self, now: float) -> None:
        """Record that the open connection ended; the next attempt is due now if it lasted."""
        if now - self._accepted_at >= SHORT_LIVED_S:
            self._failure_count, self.due = 0, now
        else:
            self._back_off(now, BACKOFF_MAX_S)

    def on_refused(self, now: float) -> None:
        """Record that the host refused a connection, because no process listens at the address."""
        if self.address is None:
            self._back_off(now, BACKOFF_MAX_S)
            return
        if not self._refusals:
            self._failure_count = 0
        if not self._refusals or now - self._refusals[-1] >= BETWEEN_REFUSALS_S:
            self._refusals = (*self._refusals[-1:], now)
        self._back_off(now, REFUSED_MAX_S)

    def on_failed(self, now: float) -> None:
        """Record an attempt that proves nothing; the name will be resolved again."""
        self.address, self._refusals = None, ()
        self._back_off(now, BACKOFF_MAX_S)

    def _back_off(self, now: float, longest_s: float) -> None:
        delay_s = BETWEEN_REFUSALS_S * (1 << min(self._failure_count, 16))
        self._failure_count += 1
        self.due = now + min(delay_s, longest_s)
