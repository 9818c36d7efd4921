"""Deadlines of many keys, watched by one task that sleeps until the earliest deadline.

The deadlines are in a heap. An entry whose deadline was disarmed or replaced by an earlier one is
stale. The heap is rebuilt when most of its entries are stale, so it keeps few references to keys
without a deadline.
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
"""The number of stale entries that never cause a rebuild; they stay until their deadlines."""


class Deadlines(Generic[K]):
    """The earliest deadline of each key."""

    __slots__ = ("_deadlines", "_earlier", "_heap", "_order")

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = count()
        """Breaks ties between equal deadlines, so that keys need not be comparable."""
        self._earlier = Signal()
        """Notified when the earliest deadline has become earlier."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    @property
    def next(self) -> float:
        """The earliest deadline; infinity if there is none."""
        return self._heap[0][0] if self._heap else inf

    def arm(self, key: K, deadline: float) -> None:
        """Set a deadline unless the key has an earlier one."""
        if self._deadlines.get(key, inf) <= deadline:
            return
        if deadline < self.next:
            self._earlier.notify()
        self._deadlines[key] = deadline
        heappush(self._heap, (deadline, next(self._order), key))
        self._drop_stale()

    def disarm(self, key: K) -> None:
        """Remove a key and its deadline."""
        self._deadlines.pop(key, None)
        self._drop_stale()

    def take(self, now: float) -> list[K]:
        """Remove and return the keys whose deadline has passed, in order of their deadlines."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, key = heappop(self._heap)
            if self._deadlines.get(key) == deadline:
                del self._deadlines[key]
                keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        """Rebuild the heap if most of its entries are stale: amortized constant time."""
        if len(self._heap) > 2 * len(self._deadlines) + STALE_MIN:
            self._heap = [
                entry for entry in self._heap if self._deadlines.get(entry[2]) == entry[0]
            ]
            heapify(self._heap)

    async def wait(self, clock: Clock) -> list[K]:
        """Wait until deadlines have passed; remove and return their keys.

        Only one task may wait.
        """
        while True:
            keys = self.take(clock.now())
            if keys:
                return keys
            with trio.move_on_after(max(self.next - clock.now(), 0)):
                await self._earlier.wait()
