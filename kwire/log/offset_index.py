"""The sparse map from offsets to file positions: ``.index``.

Eight bytes an entry: offset minus the segment's base, position of a batch in the log file, both
int32. The offset is that of the last record of the batch at the position. Entries only grow, so a
lookup is a binary search; over memory for the active segment, over the file for the others.
"""

import struct
from collections.abc import Callable
from typing import Final

from kwire.log.disk import File

ENTRY: Final = struct.Struct(">ii")
ENTRY_SIZE: Final = ENTRY.size
Read = Callable[[int], bytes]
"""One entry by its number."""


def memory(data: bytes | bytearray, size: int) -> Read:
    """Entries of ``size`` bytes out of memory."""
    return lambda number: bytes(data[number * size : (number + 1) * size])


def on_disk(file: File, size: int) -> Read:
    """Entries of ``size`` bytes read one by one from the page cache."""
    return lambda number: file.read(number * size, size)


def entries(data: bytes | bytearray, base_offset: int) -> list[tuple[int, int]]:
    """Absolute offset and position of all entries; a cut-off last one is left out."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return [
        (base_offset + offset, position) for offset, position in ENTRY.iter_unpack(data[:whole])
    ]


def floor(read: Read, count: int, relative: int) -> tuple[int, int] | None:
    """The last entry whose relative offset is at most ``relative``."""
    low, high, found = 0, count, None
    while low < high:
        middle = (low + high) // 2
        entry: tuple[int, int] = ENTRY.unpack(read(middle))
        if entry[0] <= relative:
            found = entry
            low = middle + 1
        else:
            high = middle
    return found


def keep_below(data: bytearray, relative: int, position: int) -> None:
    """Drop the entries at or past a truncation to this relative offset and position."""
    while data:
        last_offset, last_position = ENTRY.unpack_from(data, len(data) - ENTRY_SIZE)
        if last_offset < relative and last_position < position:
            return
        del data[-ENTRY_SIZE:]


def plausible(data: bytes, log_size: int) -> bool:
    """Whether offsets and positions grow and stay inside a log file of this size."""
    if len(data) % ENTRY_SIZE:
        return False
    previous = (-1, 0)
    for entry in ENTRY.iter_unpack(data):
        if entry[0] <= previous[0] or entry[1] <= previous[1] or entry[1] >= log_size:
            return False
        previous = entry
    return True
