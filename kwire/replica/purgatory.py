"""Who waits for which offset or bytes of which partition.

Pure indexes: a method returns the waits that are complete now, and the service wakes their
tasks. A wait costs nothing until its partition changes; nobody wakes to look.
"""

import enum
import heapq
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

import attrs

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_FORGOTTEN_MIN: Final = 16


@attrs.define
class OffsetWaits(Generic[T]):
    """Waits for an offset that only grows, as a partition's high watermark does."""

    _heap: list[tuple[int, int, T]] = attrs.Factory(list)
    """Some of these are forgotten, but never more than :data:`_FORGOTTEN_MIN` and half of them."""
    _waiting: set[T] = attrs.Factory(set)
    _count: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, offset: int, waiter: T) -> None:
        """Begin a wait; a waiter has one at a time."""
        self._count += 1
        self._waiting.add(waiter)
        heapq.heappush(self._heap, (offset, self._count, waiter))

    def reached(self, offset: int) -> list[T]:
        """The waits for offsets up to this one, taken out."""
        done = []
        while self._heap and self._heap[0][0] <= offset:
            waiter = heapq.heappop(self._heap)[2]
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                done.append(waiter)
        return done

    def forget(self, waiter: T) -> None:
        """End a wait that timed out or was cancelled; in constant time on average."""
        self._waiting.discard(waiter)
        if len(self._heap) > 2 * len(self._waiting) + _FORGOTTEN_MIN:
            self._heap = [entry for entry in self._heap if entry[2] in self._waiting]
            heapq.heapify(self._heap)

    def all(self) -> list[T]:
        """Everyone, taken out: the role that could fulfil the waits is gone."""
        done = [entry[2] for entry in self._heap if entry[2] in self._waiting]
        self._heap.clear()
        self._waiting.clear()
        return done


class Upto(enum.IntEnum):
    """How far into the log a fetch may read."""

    HIGH_WATERMARK = 0
    STABLE = 1
    """The last stable offset: read_committed."""
    LOG_END = 2
    """Followers replicate what is not committed yet."""


@attrs.define(eq=False)
class ByteWait(Generic[Key, T]):
    """A fetch that waits for this many more bytes, over all its partitions together."""

    waiter: T
    upto: Upto
    missing_bytes: int
    keys: tuple[Key, ...] = ()


@attrs.define
class ByteWaits(Generic[Key, T]):
    """Waits for bytes, by the partitions they may come from."""

    _watched: dict[Key, dict[ByteWait[Key, T], None]] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len({wait for waits in self._watched.values() for wait in waits})

    def watch(self, wait: ByteWait[Key, T], keys: Iterable[Key]) -> None:
        """Count bytes that become readable in any of ``keys`` from now on."""
        wait.keys = tuple(keys)
        for key in keys:
            self._watched.setdefault(key, {})[wait] = None

    def is_watched(self, key: Key) -> bool:
        return key in self._watched

    def grew(self, key: Key, upto: Upto, size_bytes: int) -> list[T]:
        """Bytes became readable up to one kind of bound: who has enough now, taken out."""
        waits = self._watched.get(key)
        if waits is None:
            return []
        enough = []
        for wait in waits:
            if wait.upto is upto:
                wait.missing_bytes -= size_bytes
                if wait.missing_bytes <= 0:
                    enough.append(wait)
        for wait in enough:
            self.forget(wait)
        return [wait.waiter for wait in enough]

    def changed(self, key: Key) -> list[T]:
        """The partition changed its role, or went: everyone has to look again, taken out."""
        waits = list(self._watched.get(key, ()))
        for wait in waits:
            self.forget(wait)
        return [wait.waiter for wait in waits]

    def forget(self, wait: ByteWait[Key, T]) -> None:
        for key in wait.keys:
            waits = self._watched.get(key)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._watched[key]
