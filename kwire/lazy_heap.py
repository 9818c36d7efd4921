"""A heap from which any item can be removed.

An item that is removed, or whose key changes, leaves a stale entry behind. Stale entries are
dropped when they reach the top, or all together once most entries are stale. So each operation
takes amortized logarithmic time, and few references to removed items remain.
"""

import sys
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

STALE_MIN: Final = 16
"""The number of stale entries that never cause the heap to be rebuilt."""


class LazyHeap(Generic[T]):
    """Items by ascending key; items with equal keys are in insertion order."""

    __slots__ = ("_count", "_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, T]] = []
        self._live: dict[T, tuple[float, int, T]] = {}
        """The entry of each item."""
        self._count = 0
        """Breaks ties between equal keys, so that items need not be comparable."""

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: T) -> bool:
        return item in self._live

    @property
    def first_key(self) -> float:
        """The lowest key; infinity if the heap is empty."""
        entries, live = self._entries, self._live
        while entries and live.get(entries[0][2]) is not entries[0]:
            heappop(entries)
        return entries[0][0] if entries else inf

    def key(self, item: T) -> float:
        """Return the key of an item; infinity if it is not in the heap."""
        entry = self._live.get(item)
        return inf if entry is None else entry[0]

    def push(self, item: T, key: float) -> None:
        """Add an item, or change its key."""
        self._count += 1
        entry = self._live[item] = (key, self._count, item)
        heappush(self._entries, entry)
        self._drop_stale()

    def discard(self, item: T) -> None:
        """Remove an item if it is in the heap."""
        if self._live.pop(item, None) is not None:
            self._drop_stale()

    def pop_up_to(self, key: float, at_most: int = sys.maxsize) -> list[T]:
        """Remove and return the items whose key is at most ``key``, in order.

        ``at_most``: the largest number of items.
        """
        items: list[T] = []
        while self._live and len(items) < at_most and self.first_key <= key:
            item = heappop(self._entries)[2]
            del self._live[item]
            items.append(item)
        return items

    def _drop_stale(self) -> None:
        if len(self._entries) > 2 * len(self._live) + STALE_MIN:
            self._entries = list(self._live.values())
            heapify(self._entries)
