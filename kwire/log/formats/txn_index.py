"""The aborted transactions of a segment: ``.txnindex``.

One entry of 34 bytes per abort marker, in the segment that holds the marker and in the markers'
order. ``last_stable_offset`` is the last stable offset after the marker was written: a reader that
stays below it needs no later entry.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, overload

from kwire.records.header import Buffer

ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = ENTRY.size
VERSION: Final = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction, whose records a read_committed reader skips."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def pack(entry: AbortedTxn) -> bytes:
    return ENTRY.pack(VERSION, *entry)


def entries(data: Buffer) -> list[AbortedTxn]:
    """Return all whole entries."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return [AbortedTxn._make(fields[1:]) for fields in ENTRY.iter_unpack(data[:whole])]


def plausible(data: bytes, base_offset: int) -> bool:
    """Whether the file is whole and its markers are in ascending order in the segment."""
    if len(data) % ENTRY_SIZE:
        return False
    previous = base_offset - 1
    for version, _, first, last, _ in ENTRY.iter_unpack(data):
        if version != VERSION or last <= previous or first > last:
            return False
        previous = last
    return True


class PackedEntries(Sequence[AbortedTxn]):
    """The entries of a file, unpacked one by one: a search looks at a few of them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    @overload
    def __getitem__(self, index: int) -> AbortedTxn: ...
    @overload
    def __getitem__(self, index: slice) -> list[AbortedTxn]: ...
    def __getitem__(self, index: int | slice) -> AbortedTxn | list[AbortedTxn]:
        if isinstance(index, slice):
            return [self[entry_index] for entry_index in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return AbortedTxn._make(ENTRY.unpack_from(self._data, index * ENTRY_SIZE)[1:])
