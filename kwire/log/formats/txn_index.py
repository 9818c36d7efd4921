"""The aborted transactions of a segment: ``.txnindex``.

One entry of 34 bytes per abort marker, in the segment that holds the marker and in the markers'
order. ``last_stable_offset`` is the last stable offset after the marker was written: a reader that
stays below it needs no later entry.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

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


def overlapping(
    aborted: Iterable[AbortedTxn], start_offset: int, end_offset: int
) -> list[AbortedTxn]:
    """Return the transactions that touch the range, sorted by first offset (invariant 19)."""
    return sorted(
        (e for e in aborted if e.last_offset >= start_offset and e.first_offset < end_offset),
        key=lambda entry: entry.first_offset,
    )
