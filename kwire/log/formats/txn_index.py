"""The aborted transactions of a segment: ``.txnindex``.

Each abort marker has one entry of 34 bytes, in the segment that holds the marker and in the order
of the markers. ``last_stable_offset`` is the last stable offset after the marker was written: a
reader that stays below that offset needs no later entry.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, overload

from kwire.records.header import Buffer

ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = ENTRY.size
_FIELDS: Final = struct.Struct(">2xqqqq")
"""An entry without its version, which is not unpacked."""
_FIRST_OFFSET: Final = "10xq16x"
"""The struct codes that unpack only an entry's first offset."""
VERSION: Final = 0
BLOCK: Final = 128
"""The number of entries that a search skips or examines together."""
LISTED_MAX: Final = 1000
"""The number of aborted transactions after which a read ends, unless more than as many others
overlap its range: the next reads would list those again."""


class AbortedTxn(NamedTuple):
    """An aborted transaction, whose records a read_committed reader skips."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def pack(entry: AbortedTxn) -> bytes:
    return ENTRY.pack(VERSION, *entry)


def entries(data: Buffer) -> list[AbortedTxn]:
    """Return all complete entries."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return list(map(AbortedTxn._make, _FIELDS.iter_unpack(data[:whole])))


def plausible(data: bytes, base_offset: int) -> bool:
    """Return whether the file has only whole entries, with ascending markers inside the segment."""
    if len(data) % ENTRY_SIZE:
        return False
    previous = base_offset - 1
    for version, _, first, last, _ in ENTRY.iter_unpack(data):
        if version != VERSION or last <= previous or first > last:
            return False
        previous = last
    return True


class BlockMinima:
    """The smallest first offset of each block of entries, computed when a search needs it.

    A transaction that stays open for a long time holds back the last stable offset, and a search
    has to examine the entries of all transactions that end meanwhile. It skips blocks whose
    transactions all begin past its range.
    """

    __slots__ = ("_minima",)

    def __init__(self, minima: Iterable[tuple[int, int]] = ()) -> None:
        self._minima = dict(minima)

    def first(self, count: int) -> "BlockMinima":
        """Return the minima of the first ``count`` blocks."""
        return BlockMinima(item for item in self._minima.items() if item[0] < count)

    def of(self, entries: "Entries", block: int) -> int:
        """Return the smallest first offset in a block of at most :data:`BLOCK` entries."""
        least = self._minima.get(block)
        if least is None:
            start, stop = block * BLOCK, min((block + 1) * BLOCK, len(entries))
            least = min(entries.first_offsets(start, stop))
            if stop - start == BLOCK:  # Entries are only ever appended.
                self._minima[block] = least
        return least

    def below(self, offset: int, entries: "Entries", blocks: Iterable[int]) -> list[int]:
        """Return the blocks that have a first offset below ``offset``."""
        return [block for block in blocks if self.of(entries, block) < offset]


class MemoryEntries(list[AbortedTxn]):
    """The entries of the active segment."""

    __slots__ = ("minima",)

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        super().__init__(aborted)
        self.minima = BlockMinima()

    def append(self, entry: AbortedTxn) -> None:
        super().append(entry)
        if not len(self) % BLOCK:
            self.minima.of(self, len(self) // BLOCK - 1)

    def first(self, count: int) -> "MemoryEntries":
        """Return the first ``count`` entries."""
        entries = MemoryEntries(self[:count])
        entries.minima = self.minima.first(count // BLOCK)
        return entries

    def first_offsets(self, start: int, stop: int) -> Iterable[int]:
        """Return the first offset of each entry in a range."""
        return [entry.first_offset for entry in self[start:stop]]


class PackedEntries(Sequence[AbortedTxn]):
    """The entries of a file, unpacked when a search examines them."""

    __slots__ = ("data", "minima")

    def __init__(self, data: bytes = b"") -> None:
        self.data: bytes | bytearray = data
        self.minima = BlockMinima()

    def append(self, entry: AbortedTxn) -> None:
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data[: len(self) * ENTRY_SIZE])
        self.data += pack(entry)

    def first(self, count: int) -> "PackedEntries":
        """Return the first ``count`` entries."""
        entries = PackedEntries(bytes(self.data[: count * ENTRY_SIZE]))
        entries.minima = self.minima.first(count // BLOCK)
        return entries

    def summarize(self) -> None:
        """Compute all block minima, for example in a thread before another one uses the entries."""
        for block in range(len(self) // BLOCK):
            self.minima.of(self, block)

    def __len__(self) -> int:
        return len(self.data) // ENTRY_SIZE

    @overload
    def __getitem__(self, index: int) -> AbortedTxn: ...
    @overload
    def __getitem__(self, index: slice) -> list[AbortedTxn]: ...
    def __getitem__(self, index: int | slice) -> AbortedTxn | list[AbortedTxn]:
        if isinstance(index, slice):
            first, stop, _ = index.indices(len(self))
            return entries(self.data[first * ENTRY_SIZE : stop * ENTRY_SIZE])
        if not 0 <= index < len(self):
            raise IndexError(index)
        return AbortedTxn._make(_FIELDS.unpack_from(self.data, index * ENTRY_SIZE))

    def first_offsets(self, start: int, stop: int) -> Iterable[int]:
        """Return the first offset of each entry in a range."""
        return struct.unpack_from(
            ">" + _FIRST_OFFSET * (stop - start), self.data, start * ENTRY_SIZE
        )


Entries = MemoryEntries | PackedEntries


def end_of_listed(entries: Entries, start_offset: int) -> int | None:
    """Return the offset of the marker that follows :data:`LISTED_MAX` others from ``start_offset``.

    Return None if there are no more than these.
    """
    following = bisect_left(entries, start_offset, key=attrgetter("last_offset")) + LISTED_MAX
    return entries[following].last_offset if following < len(entries) else None
