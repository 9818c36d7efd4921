"""Who waits for which offset or bytes of which partition.

Pure indexes: a method returns the waits that are complete now, and the service wakes their
tasks. A wait costs nothing until its partition changes; nobody wakes to look.
"""

import enum
import heapq
import math
from collections.abc import Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

import attrs

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_FORGOTTEN_MIN: Final = 16
SHARED_MAX: Final = 16
"""Most fetches that are completed together wait for the same; others read for themselves."""


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


class FetchIsolation(enum.IntEnum):
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
    upto: FetchIsolation
    missing_bytes: int
    keys: tuple[Key, ...] = ()
    woken_with: "Wake | None" = None
    """Set if others were completed together with this one."""


@attrs.define(eq=False)
class Wake:
    """What fetches of one kind of reader, completed by one append, read: for those that ask alike.

    It goes with the last of them, and keeps at most :data:`SHARED_MAX` reads.
    """

    reads: dict[Hashable, Any] = attrs.Factory(dict)

    def keep(self, key: Hashable, read: object) -> None:
        """Share a read with those that ask for the same later."""
        if key in self.reads or len(self.reads) < SHARED_MAX:
            self.reads[key] = read


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

    def grew(self, key: Key, upto: FetchIsolation, size_bytes: int) -> list[T]:
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
        together = Wake() if len(enough) > 1 else None
        for wait in enough:
            self.forget(wait)
            wait.woken_with = together
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


@attrs.define
class WaitTimes(Generic[T]):
    """When waits end by themselves.

    A wait that is over costs nothing more than its entry, which is dropped when it comes to be the
    first or when most entries are such.  So ``deadline`` is that of a wait that goes on.
    """

    _heap: list[tuple[float, int, T]] = attrs.Factory(list)
    _going_on: set[T] = attrs.Factory(set)
    _count: int = 0

    @property
    def deadline(self) -> float:
        """When the next one ends."""
        heap = self._heap
        while heap and heap[0][2] not in self._going_on:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def watch(self, at: float, waiter: T) -> None:
        """Begin a wait; a waiter has one at a time."""
        self._count += 1
        self._going_on.add(waiter)
        heapq.heappush(self._heap, (at, self._count, waiter))

    def forget(self, waiter: T) -> None:
        """End a wait; in constant time on average."""
        self._going_on.discard(waiter)
        if len(self._heap) > 2 * len(self._going_on) + _FORGOTTEN_MIN:
            self._heap = [entry for entry in self._heap if entry[2] in self._going_on]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> list[T]:
        """The waits whose time is up, taken out."""
        due = []
        while self._going_on and self.deadline <= now:
            waiter = heapq.heappop(self._heap)[2]
            self._going_on.remove(waiter)
            due.append(waiter)
        return due
