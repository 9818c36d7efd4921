"""The sparse map from offsets to file positions: ``.index``.

Each entry has eight bytes: the offset minus the segment's base, and the position of a batch in the
log file, both int32. The offset is that of the last record of the batch at the position. Entries
only increase, so a lookup is a binary search: in memory for the active segment, in the file for the
others.
"""

import struct
from collections.abc import Callable
from typing import Final

from kwire.log.cold_lookups import ReadAt
from kwire.records.header import Buffer

ENTRY: Final = struct.Struct(">ii")
ENTRY_SIZE: Final = ENTRY.size
SPAN: Final = 2048
"""The number of entries that the last step reads at once: 16 KB cost less than eleven small
reads."""
Read = Callable[[int, int], Buffer]
"""A function that reads entries, given the number of the first entry and their count."""


def memory(data: bytes | bytearray, size: int) -> Read:
    """Return a reader of entries in memory; an entry has ``size`` bytes."""
    return lambda first, count: data[first * size : (first + count) * size]


def on_disk(read: ReadAt, size: int) -> Read:
    """Return a reader of entries in a file; an entry has ``size`` bytes."""
    return lambda first, count: read(first * size, count * size)


def last_before(
    read: Read, count: int, entry: struct.Struct, is_before: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return the last of the leading entries whose first field ``is_before``; None without one."""
    data, number = search(read, count, entry, is_before)
    if not number:
        return None
    last: tuple[int, int] = entry.unpack_from(data, (number - 1) * entry.size)
    return last


def search(
    read: Read, count: int, entry: struct.Struct, is_before: Callable[[int], bool]
) -> tuple[Buffer, int]:
    """Return some entries, and how many of them ``is_before`` holds for, by their first field.

    The last one of these, if any, is the last of all entries for which it holds. If ``count`` is 0,
    nothing is read: the file may be missing.
    """
    if not count:
        return b"", 0
    low, high = 0, count
    while high - low > SPAN:
        middle = (low + high) // 2
        if is_before(entry.unpack(read(middle, 1))[0]):
            low = middle + 1
        else:
            high = middle
    first = max(low - 1, 0)
    data = read(first, high - first)
    low, high = 0, high - first
    while low < high:
        middle = (low + high) // 2
        if is_before(entry.unpack_from(data, middle * entry.size)[0]):
            low = middle + 1
        else:
            high = middle
    return data, low


def entries(data: bytes | bytearray, base_offset: int) -> list[tuple[int, int]]:
    """Return absolute offset and position of all entries; an incomplete last entry is left out."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return [
        (base_offset + offset, position) for offset, position in ENTRY.iter_unpack(data[:whole])
    ]


def floor(read: Read, count: int, relative: int) -> tuple[int, int] | None:
    """Return the last entry whose relative offset is at most ``relative``."""
    return last_before(read, count, ENTRY, relative.__ge__)


def at_position(read: Read, count: int, position: int) -> tuple[int, int] | None:
    """Return the first entry whose position is at least ``position``."""
    low, high = 0, count
    while high - low > SPAN:
        middle = (low + high) // 2
        if ENTRY.unpack(read(middle, 1))[1] < position:
            low = middle + 1
        else:
            high = middle
    for relative, at in ENTRY.iter_unpack(read(low, min(high + 1, count) - low)):
        if at >= position:
            return relative, at
    return None


def begins_before(data: Buffer, position: int) -> bool:
    """Return whether there are entries, and the first one is before ``position``."""
    return len(data) >= ENTRY_SIZE and bool(ENTRY.unpack_from(data)[1] < position)


def count_while(read: Read, count: int, holds: Callable[[Buffer], bool]) -> int:
    """Return how many entries come before the first one for which ``holds`` is false."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(read(middle, 1)):
            low = middle + 1
        else:
            high = middle
    return low


def is_below(entry: Buffer, relative: int, position: int) -> bool:
    """Return whether an entry is before a truncation to this relative offset and position."""
    last_offset, at = ENTRY.unpack(entry)
    return bool(last_offset < relative and at < position)
