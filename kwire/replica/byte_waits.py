"""The waits of fetches for bytes of partitions, and the reads that they share.

Pure indexes: a method returns the waits that are complete now, and the service wakes their
tasks. A wait costs nothing until its partition changes; no task polls.
"""

import enum
import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from kwire import attrs

if TYPE_CHECKING:
    from kwire.codec.messages.fetch import FetchResponse

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_HEAP_SLACK: Final = 16
"""Entries of ended waits that the heap of deadlines may always keep."""
SHARED_MAX: Final = 16
"""Reads that fetches completed together share; most such fetches request the same."""


class FetchIsolation(enum.IntEnum):
    """The bound up to which a fetch may read the log."""

    HIGH_WATERMARK = 0
    STABLE = 1
    """The last stable offset: read_committed."""
    LOG_END = 2
    """The log end offset: followers replicate uncommitted records."""


@attrs.define(eq=False)
class ByteWait(Generic[Key, T]):
    """A fetch that waits for ``missing_bytes`` more bytes, summed over its partitions."""

    waiter: T
    isolation: FetchIsolation
    missing_bytes: int
    keys: tuple[Key, ...] = ()
    shared_reads: "SharedReads | None" = None
    """The shared reads, set if other fetches were completed together with this one."""
    watch: "Watch[Key, T] | None" = None
    """The watch of the fetch's session, which has its partitions; ``keys`` is empty then."""


@attrs.define(eq=False)
class Watch(Generic[Key, T]):
    """An interest in partitions that outlives a wait: a fetch session's."""

    on_changed: Callable[[Key], None]
    """Called for each change of a watched partition."""
    wait: ByteWait[Key, T] | None = None
    """The wait of the session's request, while it has one."""


class SharedRead(NamedTuple):
    """An answer for one partition that several fetches share."""

    state: tuple[object, ...]
    """The partition's state when it was read."""
    answer: "FetchResponse.FetchableTopicResponse.PartitionData"
    size: int
    end_offset: int


@attrs.define(eq=False)
class SharedReads:
    """The reads shared by fetches of one isolation level that one append completed.

    A fetch with equal arguments reuses a read. It lives as long as the last of these fetches, and
    holds at most :data:`SHARED_MAX` reads.
    """

    reads: dict[Hashable, SharedRead] = attrs.Factory(dict)

    def keep(self, key: Hashable, read: SharedRead) -> None:
        """Share a read with later fetches that request the same."""
        if key in self.reads or len(self.reads) < SHARED_MAX:
            self.reads[key] = read


@attrs.define
class ByteWaits(Generic[Key, T]):
    """Waits for bytes, by the partitions that may provide them."""

    watched: dict[Key, dict[ByteWait[Key, T], None]] = attrs.Factory(dict)
    """The waits of each partition that has any."""
    watches: dict[Key, dict[Watch[Key, T], None]] = attrs.Factory(dict)
    """The watches of each partition that has any."""

    def __len__(self) -> int:
        keys = (*self.watched, *self.watches)
        return len({wait for key in keys for wait in self._waits(key)})

    def watch(self, watch: Watch[Key, T], key: Key) -> None:
        self.watches.setdefault(key, {})[watch] = None

    def unwatch(self, watch: Watch[Key, T], key: Key) -> None:
        watches = self.watches.get(key, {})
        watches.pop(watch, None)
        if not watches:
            self.watches.pop(key, None)

    def mark(self, key: Key) -> None:
        """Report a change of a partition to its watches."""
        for watch in self.watches.get(key, ()):
            watch.on_changed(key)

    def _waits(self, key: Key) -> Collection[ByteWait[Key, T]]:
        waits, watches = self.watched.get(key, {}), self.watches.get(key)
        if watches is None:
            return waits
        return [*waits, *(watch.wait for watch in watches if watch.wait is not None)]

    def add(self, wait: ByteWait[Key, T], keys: Iterable[Key]) -> None:
        """Count bytes that become readable in any of ``keys`` from now on."""
        wait.keys = tuple(keys)
        for key in keys:
            self.watched.setdefault(key, {})[wait] = None

    def pop_complete(self, key: Key, isolation: FetchIsolation, size_bytes: int) -> list[T]:
        """Count bytes that became readable up to a bound; remove and return complete waits."""
        complete = []
        for wait in self._waits(key):
            if wait.isolation is isolation:
                wait.missing_bytes -= size_bytes
                if wait.missing_bytes <= 0:
                    complete.append(wait)
        shared_reads = SharedReads() if len(complete) > 1 else None
        for wait in complete:
            self.discard(wait)
            wait.shared_reads = shared_reads
        return [wait.waiter for wait in complete]

    def pop_isolation(self, key: Key, isolation: FetchIsolation) -> list[T]:
        """Remove and return all waits of an isolation level, whose bound moved by unknown bytes."""
        waits = [wait for wait in self._waits(key) if wait.isolation is isolation]
        shared_reads = SharedReads() if len(waits) > 1 else None
        for wait in waits:
            self.discard(wait)
            wait.shared_reads = shared_reads
        return [wait.waiter for wait in waits]

    def pop_all(self, key: Key) -> list[T]:
        """Remove and return all waits of a partition whose role changed or that was removed.

        Their fetches have to check the partition again.
        """
        waits = list(self._waits(key))
        for wait in waits:
            self.discard(wait)
        return [wait.waiter for wait in waits]

    def discard(self, wait: ByteWait[Key, T]) -> None:
        if wait.watch is not None and wait.watch.wait is wait:
            wait.watch.wait = None
        for key in wait.keys:
            waits = self.watched.get(key)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self.watched[key]


@attrs.define
class WaitTimes(Generic[T]):
    """The deadlines of waits.

    A wait that has ended costs only its entry, which is dropped when it becomes the first or when
    most entries are of ended waits.  So ``deadline`` is always that of a wait still going on.
    """

    _heap: list[tuple[float, int, T]] = attrs.Factory(list)
    _going_on: set[T] = attrs.Factory(set)
    _count: int = 0

    @property
    def deadline(self) -> float:
        """The earliest deadline of a wait, infinity without one."""
        heap = self._heap
        while heap and heap[0][2] not in self._going_on:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def add(self, at: float, waiter: T) -> None:
        """Begin a wait; a waiter has one at a time."""
        self._count += 1
        self._going_on.add(waiter)
        heapq.heappush(self._heap, (at, self._count, waiter))

    def discard(self, waiter: T) -> None:
        """End a wait; in constant time on average."""
        self._going_on.discard(waiter)
        if len(self._heap) > 2 * len(self._going_on) + _HEAP_SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in self._going_on]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> list[T]:
        """Remove and return the waits whose deadline has passed."""
        due = []
        while self._going_on and self.deadline <= now:
            waiter = heapq.heappop(self._heap)[2]
            self._going_on.remove(waiter)
            due.append(waiter)
        return due
