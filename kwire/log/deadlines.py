"""Deadlines of many keys, watched by one task that sleeps until the earliest deadline."""

from collections.abc import Hashable
from typing import Generic, TypeVar

import trio

from kwire.clock import Clock
from kwire.lazy_heap import LazyHeap
from kwire.waits import Signal

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """The earliest deadline of each key."""

    __slots__ = ("_earlier", "_keys")

    def __init__(self) -> None:
        self._keys: LazyHeap[K] = LazyHeap()
        self._earlier = Signal()
        """Notified when the earliest deadline has become earlier."""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    @property
    def next(self) -> float:
        """The earliest deadline; infinity if there is none."""
        return self._keys.first_key

    def arm(self, key: K, deadline: float) -> None:
        """Set a deadline unless the key has an earlier one."""
        if self._keys.key(key) <= deadline:
            return
        if deadline < self.next:
            self._earlier.notify()
        self._keys.push(key, deadline)

    def disarm(self, key: K) -> None:
        """Remove a key and its deadline."""
        self._keys.discard(key)

    def take(self, now: float) -> list[K]:
        """Remove and return the keys whose deadline has passed, in order of their deadlines."""
        return self._keys.pop_up_to(now)

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
