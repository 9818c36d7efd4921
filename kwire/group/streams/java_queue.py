"""Java's priority queue, in which elements of equal priority leave in the order of Java's heap.

Kafka's assignor gives tasks to the process and the member with the least load, and most loads are
equal. kwire uses the order of Java's queue, so that both make the same assignment; `heapq` would
order equal elements differently.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class JavaQueue(Generic[T]):
    """A binary heap; an element's priority must not change while the element is in the queue."""

    priority: Callable[[T], float]
    _heap: list[T] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self._heap)

    def add_all(self, items: Iterable[T]) -> None:
        for item in items:
            self.add(item)

    def add(self, item: T) -> None:
        heap, priority = self._heap, self.priority(item)
        heap.append(item)
        place = len(heap) - 1
        while place > 0:
            parent = (place - 1) >> 1
            if priority >= self.priority(heap[parent]):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = item

    def pop(self) -> T:
        """Remove and return the element with the least priority; the queue must not be empty."""
        heap = self._heap
        first, item = heap[0], heap.pop()
        size = len(heap)
        if not size:
            return first
        priority, place = self.priority(item), 0
        while (child := 2 * place + 1) < size:
            right = child + 1
            if right < size and self.priority(heap[child]) > self.priority(heap[right]):
                child = right
            if priority <= self.priority(heap[child]):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = item
        return first
