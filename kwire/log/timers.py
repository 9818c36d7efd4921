"""Deadlines of many keys, watched by one task that sleeps until the earliest.

The deadlines are a heap. An entry whose deadline was disarmed or made earlier is stale. The heap
is rebuilt when most of its entries are stale, so it refers to few keys without a deadline.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final, Generic, TypeVar

import trio

from kwire.clock import Clock
from kwire.waits import Signal

K = TypeVar("K")
STALE_MIN: Final = 16
"""Stale entries that never cause a rebuild; they stay until their deadlines."""


class Timers(Generic[K]):
    """The earliest deadline of each key."""

    __slots__ = ("_due", "_earlier", "_heap", "_order")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = count()
        """Tie-breaker for equal deadlines, so that keys need no order."""
        self._earlier = Signal()
        """Notified when there is an earlier deadline than before."""

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    @property
    def next(self) -> float:
        """The earliest deadline, infinity without one."""
        return self._heap[0][0] if self._heap else inf

    def arm(self, key: K, due: float) -> None:
        """Set a deadline unless the key has an earlier one."""
        if self._due.get(key, inf) <= due:
            return
        if due < self.next:
            self._earlier.notify()
        self._due[key] = due
        heappush(self._heap, (due, next(self._order), key))
        self._drop_stale()

    def disarm(self, key: K) -> None:
        """Forget a key and its deadline."""
        self._due.pop(key, None)
        self._drop_stale()

    def take(self, now: float) -> list[K]:
        """Remove the keys whose deadline has come, and return them in order of their deadlines."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                taken.append(key)
        return taken

    def _drop_stale(self) -> None:
        """Rebuild the heap if most of its entries are stale: amortized constant time."""
        if len(self._heap) > 2 * len(self._due) + STALE_MIN:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)

    async def wait(self, clock: Clock) -> list[K]:
        """Block until deadlines have come; remove and return their keys. Only one task may wait."""
        while True:
            taken = self.take(clock.now())
            if taken:
                return taken
            with trio.move_on_after(max(self.next - clock.now(), 0)):
                await self._earlier.wait()
