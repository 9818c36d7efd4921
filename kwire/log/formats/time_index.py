"""The sparse map from timestamps to offsets: ``.timeindex``.

Each entry has twelve bytes: the largest timestamp of the segment so far (int64), and the last
offset of the first batch that has it, minus the base offset (int32). Both increase from entry to
entry, and the last entry of a closed segment holds its largest timestamp.
"""

import struct
from typing import Final

from kwire.log.formats.offset_index import Read, last_before
from kwire.records.header import Buffer

ENTRY: Final = struct.Struct(">qi")
ENTRY_SIZE: Final = ENTRY.size


def entries(data: bytes | bytearray, base_offset: int) -> list[tuple[int, int]]:
    """Return timestamp and absolute offset of all entries; an incomplete last entry is left out."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return [
        (timestamp, base_offset + offset) for timestamp, offset in ENTRY.iter_unpack(data[:whole])
    ]


def before(read: Read, count: int, timestamp: int) -> tuple[int, int] | None:
    """Return the last entry older than ``timestamp``; all records up to its offset are older."""
    return last_before(read, count, ENTRY, timestamp.__gt__)


def last(data: Buffer) -> tuple[int, int]:
    """Return the last entry; (-1, 0) if there is none."""
    if len(data) < ENTRY_SIZE:
        return -1, 0
    entry: tuple[int, int] = ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
    return entry


def is_below(entry: Buffer, relative: int) -> bool:
    """Return whether an entry is before a truncation to this relative offset."""
    return bool(ENTRY.unpack(entry)[1] < relative)
