"""Partitions that a fetcher skips for a while, and the times when their delays end.

Delays end on a grid of :data:`GRID_S`, so that partitions which fail shortly after one another are
fetched together again. Pure state.
"""

import math
from typing import Final

import attrs

from kwire.replica.fetcher.session import Key

GRID_S: Final = 0.02


@attrs.define(eq=False, repr=False)
class Delays:
    """The skipped partitions, with the time in seconds when each delay ends."""

    next_end: float = math.inf
    """A lower bound for the earliest end; infinity only if there are no delays."""
    _ends: dict[Key, float] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: Key) -> bool:
        return key in self._ends

    def add(self, key: Key, until: float) -> None:
        """Skip a partition until the time ``until``, rounded up to the grid."""
        end = self._ends[key] = math.ceil(until / GRID_S) * GRID_S
        self.next_end = min(self.next_end, end)

    def discard(self, key: Key) -> None:
        """End a partition's delay, if it has one."""
        self._ends.pop(key, None)

    def pop_ended(self, now: float) -> list[Key]:
        """Remove the delays that have ended; return their partitions."""
        if now < self.next_end:
            return []
        keys = [key for key, end in self._ends.items() if end <= now]
        for key in keys:
            del self._ends[key]
        self.next_end = min(self._ends.values(), default=math.inf)
        return keys
