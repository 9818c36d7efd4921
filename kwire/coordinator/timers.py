"""Named deadlines, kept as data.

Postponing a deadline, as each heartbeat does with the member's session, costs one dictionary write:
its heap entry stays and is moved when the old time comes. So ``deadline`` may be earlier than the
first real deadline, never later. The heap holds at most one entry per name, plus one for each time
that a deadline was made earlier or was set again.

The clock of deadlines stops while the broker's lease is over: requests are rejected then, so
members could not keep their sessions alive (decision 21).
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING

import attrs

from kwire.clock import Clock, SteadyWall
from kwire.coordinator.decision import Moment

if TYPE_CHECKING:
    from kwire.coordinator.ports import LeaseTime

_SLACK = 64
_MOVED_AT_ONCE = 250
"""Entries of postponed deadlines that one call moves, about half a millisecond: after a load, the
sessions of all members have one deadline.
"""


@attrs.define(eq=False, repr=False)
class Timers:
    """The deadlines of one shard."""

    _at: dict[Hashable, float] = attrs.field(factory=dict, init=False)
    _heap: list[tuple[float, int, Hashable]] = attrs.field(factory=list, init=False)
    _pushed: dict[Hashable, float] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._at)

    @property
    def deadline(self) -> float:
        """The time of the next check, at the latest the first deadline; infinity without any."""
        return self._heap[0][0] if self._at and self._heap else inf

    def at(self, name: Hashable) -> float | None:
        """Return the deadline of ``name``, None if it is not set."""
        return self._at.get(name)

    def set(self, name: Hashable, at: float | None) -> None:
        """Set, move or cancel (None) a deadline."""
        if at is None:
            self._at.pop(name, None)
            return
        self._at[name] = at
        if self._pushed.get(name, inf) > at:
            self._push(name, at)

    def pop_due(self, now: float) -> Hashable | None:
        """Remove one deadline that has passed and return its name.

        Return None if none has passed, or none was found among the first entries; in that case,
        :attr:`deadline` has still passed.
        """
        for _ in range(_MOVED_AT_ONCE):
            if not self._heap or self._heap[0][0] > now:
                return None
            entered, _, name = heappop(self._heap)
            if self._pushed.get(name) == entered:
                del self._pushed[name]
            at = self._at.get(name)
            if at is None:
                continue
            if at <= now:
                del self._at[name]
                return name
            if self._pushed.get(name, inf) > at:
                self._push(name, at)
        return None

    def _push(self, name: Hashable, at: float) -> None:
        self._count += 1
        self._pushed[name] = at
        heappush(self._heap, (at, self._count, name))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        """Rebuild the heap without the entries of cancelled and moved deadlines."""
        self._pushed = dict(self._at)
        self._heap = [(at, n, name) for n, (name, at) in enumerate(self._at.items())]
        heapify(self._heap)
        self._count = len(self._heap)


@attrs.frozen(eq=False, repr=False)
class DeadlineClock:
    """The time of one coordinator's deadlines, in seconds."""

    clock: Clock
    lease: "LeaseTime"
    steady: SteadyWall

    def now(self) -> float:
        return self.clock.now() - self.lease.lease_over_s

    def moment(self) -> Moment:
        """Return the current time; its wall clock runs even while the lease is over."""
        now = self.clock.now()
        return Moment(now - self.lease.lease_over_s, self.clock.now_ms(), self.steady.at(now))

    def passes_at(self, deadline: float) -> float:
        """Return when a deadline passes on the node's clock, unless the lease ends before that.

        It may be rounded up, never down: a task that sleeps until then must find the deadline
        passed.
        """
        over_s = self.lease.lease_over_s
        passes_at = deadline + over_s
        return passes_at if passes_at - over_s >= deadline else nextafter(passes_at, inf)
