"""Fetches that wait for bytes in partitions, and the reads that they share.

Pure indexes: a method returns the waits that are now complete, and the caller wakes their tasks. A
wait costs nothing until its partition changes; no task polls.

A wait for thousands of partitions begins and ends partition by partition, with pauses. It counts
bytes only in the partitions added so far, and no bytes once it is over.
"""

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import attrs

from kwire.replica.partition import FetchIsolation, SharedReads

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

WATCHES_FEW: Final = 16
"""The most watches of a partition of which even those stay that need no further report."""
REMOVED_AT_ONCE: Final = 64
"""The most partitions of a complete wait that are removed at once instead of later."""


ALL_ISOLATIONS: Final = tuple(FetchIsolation)
ENOUGH_BYTES: Final = 1 << 62
"""Bytes that complete every wait."""


@attrs.define(eq=False, repr=False)
class ByteWait(Generic[Key, T]):
    """A fetch that waits for ``missing_bytes`` more bytes, summed over its partitions."""

    waiter: T
    isolation: FetchIsolation
    missing_bytes: int
    keys: list[Key] = attrs.Factory(list)
    is_over: bool = False
    """True once the wait is complete or discarded."""
    is_outdated: bool = False
    """True if the role or the bounds of a partition have changed, so that all are checked again."""
    shared_reads: SharedReads | None = None
    """The shared reads, set if other fetches were completed together with this one."""
    watch: "Watch[Key, T] | None" = None
    """The watch of the fetch's session, which then holds the partitions instead of ``keys``."""


@attrs.define(eq=False, repr=False)
class Watch(Generic[Key, T]):
    """A fetch session's interest in partitions, which outlives the waits of its requests."""

    on_changed: Callable[[Key], None]
    """Called for each change of a watched partition."""
    wait: ByteWait[Key, T] | None = None
    """The wait of the session's current request, if any."""


@attrs.define(eq=False, repr=False)
class NewBytes(Generic[Key, T]):
    """Bytes that became readable in a partition, and the waits that must count them.

    These are the waits that had already begun. They count the bytes at once, or later, a few waits
    at a time. A wait that begins later is not included, because its fetch has seen the bytes; a
    wait that ends before its turn does not count them.
    """

    key: Key
    isolations: Sequence[FetchIsolation]
    size_bytes: int
    waits: list[ByteWait[Key, T]]
    is_change: bool = False
    """True if the role of the partition has changed, so that the fetches check all partitions."""
    _taken: int = 0
    _shared_reads: dict[FetchIsolation, SharedReads] = attrs.Factory(dict)

    @property
    def is_counted(self) -> bool:
        """True if no wait still has to count the bytes."""
        return self._taken >= len(self.waits)

    def take(self, at_most: int) -> list[ByteWait[Key, T]]:
        """Return the next waits."""
        first = self._taken
        self._taken += at_most
        return self.waits[first : self._taken]

    def shared_by(self, isolation: FetchIsolation, count: int) -> SharedReads | None:
        """Return the shared reads for waits, of which ``count`` complete together."""
        shared = self._shared_reads.get(isolation)
        if shared is None and (count > 1 or not self.is_counted):
            shared = self._shared_reads[isolation] = SharedReads()
        return shared


@attrs.define(eq=False, repr=False)
class ByteWaits(Generic[Key, T]):
    """Waits for bytes, indexed by the partitions that may provide them."""

    watched: dict[Key, dict[ByteWait[Key, T], None]] = attrs.Factory(dict)
    """The waits of each partition that has any."""
    watches: dict[Key, dict[Watch[Key, T], None]] = attrs.Factory(dict)
    """The watches of each partition that has any."""

    def __len__(self) -> int:
        keys = (*self.watched, *self.watches)
        return len({wait for key in keys for wait in self._waits(key)})

    def watch(self, watch: Watch[Key, T], key: Key) -> None:
        self.watches.setdefault(key, {})[watch] = None

    def unwatch(self, watch: Watch[Key, T], keys: Iterable[Key]) -> None:
        """Remove a watch from ``keys``; it must watch all of them."""
        for key in keys:
            watches = self.watches[key]
            del watches[watch]
            if not watches:
                del self.watches[key]

    def mark(self, key: Key) -> None:
        """Report a change of a partition to its watches, which may end by that."""
        for watch in tuple(self.watches.get(key, ())):
            watch.on_changed(key)

    def has_many_watches(self, key: Key) -> bool:
        """Return whether reporting each change of a partition to all of its watches takes long."""
        return len(self.watches.get(key, ())) > WATCHES_FEW

    def _waits(self, key: Key) -> Collection[ByteWait[Key, T]]:
        waits, watches = self.watched.get(key, {}), self.watches.get(key)
        if watches is None:
            return waits
        return [*waits, *(watch.wait for watch in watches if watch.wait is not None)]

    def add(self, wait: ByteWait[Key, T], keys: Iterable[Key]) -> None:
        """Count bytes that become readable in any of ``keys`` from now on.

        Further keys may be added later.
        """
        for key in keys:
            wait.keys.append(key)
            self.watched.setdefault(key, {})[wait] = None

    def find(
        self, key: Key, isolations: Sequence[FetchIsolation], size_bytes: int
    ) -> NewBytes[Key, T]:
        """Return bytes newly readable at some isolation levels, which no wait counts yet."""
        return NewBytes(key, isolations, size_bytes, list(self._waits(key)))

    def pop_complete(
        self, key: Key, isolations: Sequence[FetchIsolation], size_bytes: int
    ) -> list[T]:
        """Count bytes newly readable at some isolation levels; remove and return complete waits.

        The waits are in the order of ``isolations``.
        """
        complete = _count(self._waits(key), isolations, size_bytes)
        waiters: list[T] = []
        for isolation in isolations:
            if isolation in complete:
                waits = complete[isolation]
                shared_reads = SharedReads() if len(waits) > 1 else None
                waiters += self._pop(key, waits, shared_reads)
        return waiters

    def count(self, arrival: NewBytes[Key, T], at_most: int) -> list[T]:
        """Have the next waits count new bytes; remove and return those that are complete."""
        complete = _count(arrival.take(at_most), arrival.isolations, arrival.size_bytes)
        waiters: list[T] = []
        for isolation, waits in complete.items():
            if arrival.is_change:
                waiters += self._pop_outdated(arrival.key, waits)
            else:
                waiters += self._pop(arrival.key, waits, arrival.shared_by(isolation, len(waits)))
        return waiters

    def pop_isolation(self, key: Key, isolation: FetchIsolation) -> list[T]:
        """Remove and return all waits of an isolation level whose bound moved by unknown bytes."""
        waits = [w for w in self._waits(key) if w.isolation is isolation and not w.is_over]
        return self._pop(key, waits, SharedReads() if len(waits) > 1 else None)

    def pop_all(self, key: Key, isolations: Sequence[FetchIsolation] = ALL_ISOLATIONS) -> list[T]:
        """Remove and return all waits of a partition whose role changed or that was removed.

        Their fetches must check the partition again.
        """
        waits = [w for w in self._waits(key) if w.isolation in isolations and not w.is_over]
        return self._pop_outdated(key, waits)

    def _pop_outdated(self, key: Key, waits: list[ByteWait[Key, T]]) -> list[T]:
        for wait in waits:
            wait.is_outdated = True
        return self._pop(key, waits, None)

    def _pop(
        self, key: Key, waits: list[ByteWait[Key, T]], shared_reads: SharedReads | None
    ) -> list[T]:
        for wait in waits:
            wait.shared_reads = shared_reads
            if len(wait.keys) <= REMOVED_AT_ONCE:
                self.discard(wait)
            else:
                self.end(wait)
                self._remove(wait, key)
        return [wait.waiter for wait in waits]

    def end(self, wait: ByteWait[Key, T]) -> None:
        """Stop counting bytes for a wait; it is not returned as complete again."""
        wait.is_over = True
        if wait.watch is not None and wait.watch.wait is wait:
            wait.watch.wait = None

    def discard(self, wait: ByteWait[Key, T]) -> None:
        """End a wait and remove it."""
        self.end(wait)
        while wait.keys:
            self._remove(wait, wait.keys.pop())

    def discarding(self, wait: ByteWait[Key, T]) -> Generator[None, None, None]:
        """End a wait at once and remove it partition by partition."""
        self.end(wait)
        while wait.keys:
            self._remove(wait, wait.keys.pop())
            yield

    def _remove(self, wait: ByteWait[Key, T], key: Key) -> None:
        waits = self.watched.get(key)
        if waits is not None:
            waits.pop(wait, None)
            if not waits:
                del self.watched[key]


def _count(
    waits: Iterable[ByteWait[Key, T]], isolations: Sequence[FetchIsolation], size_bytes: int
) -> dict[FetchIsolation, list[ByteWait[Key, T]]]:
    """Have waits count bytes; return those that are complete, by their isolation level."""
    complete: dict[FetchIsolation, list[ByteWait[Key, T]]] = {}
    for wait in waits:
        if wait.isolation in isolations:
            wait.missing_bytes -= size_bytes
            if wait.missing_bytes <= 0 and not wait.is_over:
                complete.setdefault(wait.isolation, []).append(wait)
    return complete
