"""A part of an offset index on disk that was read last, so that sequential readers find it again.

A consumer that reads a segment from its start looks up one offset after the other. Each lookup in
the file opens it and searches it; the entries that follow the one found answer the next lookups. A
page is valid while these entries of the index stay: entries that are added later only come after
it, and whoever cuts or replaces the index drops its page.
"""

import sys
from array import array
from bisect import bisect_right
from typing import Final

from kwire.log.formats.offset_index import ENTRY, ENTRY_SIZE
from kwire.records.header import Buffer

ENTRIES_MAX: Final = 1024
"""The largest number of entries in a page, which take eight bytes each."""


class IndexPage:
    """Consecutive entries of an offset index, at least one."""

    __slots__ = ("_data", "_offsets", "_positions", "first", "last_offset")

    def __init__(self, data: Buffer, number: int) -> None:
        """Keep the entries in ``data`` from the one with this ``number`` onwards."""
        start, whole = number * ENTRY_SIZE, len(data) // ENTRY_SIZE * ENTRY_SIZE
        end = min(start + ENTRIES_MAX * ENTRY_SIZE, whole)
        self._data: bytes | None = bytes(data[start:end])
        """The entries, until the first lookup that finds one: random lookups find none."""
        self._offsets, self._positions = array("i"), array("i")
        self.first: tuple[int, int] = ENTRY.unpack_from(self._data)
        self.last_offset: int = ENTRY.unpack_from(self._data, len(self._data) - ENTRY_SIZE)[0]

    def floor(self, relative: int) -> tuple[int, int] | None:
        """Return the last entry whose relative offset is at most ``relative``.

        Return None if that may be an entry outside the page.
        """
        if not self.first[0] <= relative < self.last_offset:
            return None
        if self._data is not None:
            numbers = array("i", self._data)
            if sys.byteorder == "little":
                numbers.byteswap()
            self._offsets, self._positions = numbers[::2], numbers[1::2]
            self._data = None
        index = bisect_right(self._offsets, relative) - 1
        return self._offsets[index], self._positions[index]
