"""The three indexes of a segment: offsets, timestamps and aborted transactions.

Rules: the newest entries of an active segment are in memory until a flush or a clean stop has
written them (:mod:`kwire.log.segments.growing_index`). From then on the indexes are files, which
are searched without being loaded. Their offsets are relative to the segment's base offset.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kwire.log.cold_lookups import reader
from kwire.log.formats import names, offset_index, time_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.segments import growing_index
from kwire.log.segments.aborted_index import AbortedIndex
from kwire.log.segments.files import SegmentFiles
from kwire.log.segments.growing_index import GrowingIndex
from kwire.log.segments.index_page import IndexPage
from kwire.records.header import Buffer

_OFFSET: Final = offset_index.ENTRY
_OFFSET_SIZE: Final = offset_index.ENTRY_SIZE
_TIME: Final = time_index.ENTRY
_TIME_SIZE: Final = time_index.ENTRY_SIZE
_GROWING: Final = (names.INDEX + names.GROWING, names.TIME_INDEX + names.GROWING)


class SegmentIndexes:
    """The indexes of one segment: growing, or on disk."""

    __slots__ = (
        "_files",
        "_has_growing_files",
        "_last_time",
        "_page",
        "_spill_size",
        "aborted",
        "has_surplus",
        "offsets",
        "times",
    )

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.offsets: GrowingIndex | None = None
        """The offset index; None while it is on disk only."""
        self.times: GrowingIndex | None = None
        """The time index; None while it is on disk only."""
        self._page: IndexPage | None = None
        """The entries on disk that a lookup has read last; dropped when the index is cut."""
        self._last_time = -1
        """The timestamp of the last entry, while the time index grows."""
        self._has_growing_files = False
        """True if entries were moved to files with the suffix :data:`names.GROWING`."""
        self.has_surplus = False
        """True if so many entries are in memory that :meth:`spill` is due before an append."""
        self._spill_size = _piece_bytes()
        """The size of the offset index in memory, in bytes, from which :attr:`has_surplus` is
        True."""
        self.aborted = AbortedIndex(files)

    def start(self) -> None:
        """Start with empty indexes, for a new segment or a rebuild."""
        self._grow(0, 0, -1)
        self.aborted.start()

    def load(self) -> None:
        """Prepare to append: reads only the last time index entry; all entries stay on disk."""
        if self.offsets is None:
            last_time, _ = self.last_timestamp()
            self._grow(self._file_bytes(names.INDEX), self._file_bytes(names.TIME_INDEX), last_time)
            self.aborted.load()

    def _grow(self, offset_bytes: int, time_bytes: int, last_time: int) -> None:
        offset_bytes -= offset_bytes % _OFFSET_SIZE
        time_bytes -= time_bytes % _TIME_SIZE
        self.forget_page()
        self.offsets = GrowingIndex(names.INDEX, _OFFSET_SIZE, offset_bytes)
        self.times = GrowingIndex(names.TIME_INDEX, _TIME_SIZE, time_bytes)
        self._last_time = last_time
        self.has_surplus, self._spill_size = False, _piece_bytes()

    def _file_bytes(self, suffix: str) -> int:
        """Return the size of an index file in bytes, or 0 if it does not exist."""
        file = self._files.open(suffix)
        try:
            return file.size()
        except FileNotFoundError:
            return 0
        finally:
            file.close()

    def adopt(self, other: "SegmentIndexes") -> None:
        """Replace the offset and time index with those of ``other``, a copy of this segment."""
        self.load()
        self.forget_page()
        self.offsets, self.times, self._last_time = other.offsets, other.times, other._last_time
        self.has_surplus, self._spill_size = other.has_surplus, other._spill_size

    def shadow(self, files: SegmentFiles) -> "SegmentIndexes":
        """Return the entries on disk as separate indexes, for a thread to search."""
        shadow = SegmentIndexes(files)
        if self.offsets is not None and self.times is not None:
            shadow.offsets, shadow.times = self.offsets.shadow(), self.times.shadow()
        return shadow

    def drop(self) -> None:
        """Drop the entries from memory; they must be on disk."""
        self.forget_page()
        self.offsets = self.times = None
        self.has_surplus = self._has_growing_files = False
        self.aborted.drop()

    def spill(self) -> None:
        """Move a piece of the entries in memory to files, on the event loop.

        The entries stay in memory if the disk is slow or full, or after an error, which the disk
        has already handled. The next attempt comes after another piece of entries.
        """
        offsets, times, disk = self.offsets, self.times, self._files.disk
        self.has_surplus = False
        if offsets is None or times is None:
            return
        self._spill_size = len(offsets.tail) + _piece_bytes()
        if disk.slow or disk.full:
            return
        self._has_growing_files |= offsets.is_new or times.is_new
        with suppress(OSError):
            offsets.spill(self._files)
            times.spill(self._files)
            self._spill_size = _piece_bytes()
            self.has_surplus = len(offsets.tail) >= _piece_bytes()

    def write(self) -> None:
        """Write the indexes under their final names; nothing in memory changes."""
        assert self.offsets is not None
        assert self.times is not None
        for index in (self.offsets, self.times):
            index.write(self._files)
        # These files still exist if the indexes were rebuilt.
        self._files.remove(*self.growing_suffixes)
        self.aborted.write()

    def mark_growing(self) -> None:
        """Take its final name from the offset index before a new segment begins.

        The file may have the name from an earlier run, from before a truncation, or from a flush
        that failed. But the newest batches are not synced, and at a start a segment with an index
        counts as synced.
        """
        assert self.offsets is not None
        self.offsets.mark_growing(self._files)
        self._has_growing_files |= self.offsets.is_new

    def pack(self) -> dict[str, Buffer]:
        """Return the index files, by suffix, in the order of their writes; all are in memory."""
        assert self.offsets is not None
        assert self.times is not None
        assert not self.offsets.file_size, "entries are in files"
        files: dict[str, Buffer] = {
            names.INDEX: self.offsets.tail,
            names.TIME_INDEX: self.times.tail,
        }
        return files | self.aborted.pack()

    @property
    def growing_suffixes(self) -> tuple[str, ...]:
        """The suffixes of files that may exist besides those of a closed segment."""
        return _GROWING if self._has_growing_files else ()

    def truncate(self, end_offset: int, relative: int, position: int) -> None:
        """Drop the entries at or after ``end_offset``, where the log is cut.

        The aborted transactions are only read: the cut may fail, and its caller drops them.
        ``relative`` is ``end_offset`` minus the base offset, ``position`` where its batch starts.
        """
        self.load()
        self.forget_page()
        assert self.offsets is not None
        assert self.times is not None
        self.offsets.keep_while(
            self._files, lambda entry: offset_index.is_below(entry, relative, position)
        )
        self.times.keep_while(self._files, lambda entry: time_index.is_below(entry, relative))
        self._last_time, _ = self.last_timestamp()
        self.aborted.entries()

    # -- appending

    def free_entries(self, index_bytes: int) -> int:
        """Return how many entries fit before an append must spill or begin a new segment.

        ``index_bytes``: ``segment.index.bytes``.
        """
        offsets, times = self.offsets, self.times
        if offsets is None or times is None or self.has_surplus:
            return 0
        return min(
            index_bytes // _OFFSET_SIZE - 1 - offsets.size // _OFFSET_SIZE,
            index_bytes // _TIME_SIZE - 2 - times.size // _TIME_SIZE,
            (self._spill_size - 1 - len(offsets.tail)) // _OFFSET_SIZE,
        )

    def add(self, relative: int, position: int, timestamp: int, timestamp_relative: int) -> None:
        """Append an offset entry for a batch, and a time entry if the largest timestamp grew."""
        offsets, times = self.offsets, self.times
        if offsets is None or times is None:
            self.load()
            self.add(relative, position, timestamp, timestamp_relative)
            return
        tail = offsets.tail
        tail += _OFFSET.pack(relative, position)
        offsets.size += _OFFSET_SIZE
        if timestamp > self._last_time:
            times.tail += _TIME.pack(timestamp, timestamp_relative)
            times.size += _TIME_SIZE
            self._last_time = timestamp
        if len(tail) >= self._spill_size:
            self.has_surplus = True

    def add_timestamp(self, timestamp: int, relative: int) -> None:
        """Append a time index entry for the largest timestamp, unless the last entry has it."""
        self.load()
        assert self.times is not None
        if timestamp > self._last_time:
            self.times.tail += _TIME.pack(timestamp, relative)
            self.times.size += _TIME_SIZE
            self._last_time = timestamp

    # -- searching

    def at_position(self, position: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return the first entry of the offset index at or after ``position``.

        Without ``wait``, raise :class:`WouldWait` instead of waiting for the disk.
        """
        index, newer = self.offsets, None
        if index is not None:
            newer = offset_index.at_position(*index.in_memory(), position)
            if not index.file_size or offset_index.begins_before(index.tail, position):
                return newer
        with self._on_disk(index, names.INDEX, _OFFSET_SIZE, wait=wait) as entries:
            return offset_index.at_position(*entries, position) or newer

    def floor(self, relative: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return the last entry of the offset index whose offset is at most ``relative``.

        Without ``wait``, raise :class:`WouldWait` instead of waiting for the disk.
        """
        page, index = self._page, self.offsets
        if page is not None and (entry := page.floor(relative)) is not None:
            return entry
        if index is not None:
            entry = offset_index.floor(*index.in_memory(), relative)
            if entry is not None or not index.file_size:
                return entry
        with self._on_disk(index, names.INDEX, _OFFSET_SIZE, wait=wait) as (read, count):
            data, number = offset_index.search(read, count, _OFFSET, relative.__ge__)
        if not number:
            return None
        page = self._page = IndexPage(data, number - 1)
        return page.first

    def forget_page(self) -> None:
        """Free the entries that were read last."""
        self._page = None

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry of the time index that is older than ``timestamp``."""
        index = self.times
        if index is not None:
            entry = time_index.before(*index.in_memory(), timestamp)
            if entry is not None or not index.file_size:
                return entry
        with self._on_disk(index, names.TIME_INDEX, _TIME_SIZE) as entries:
            return time_index.before(*entries, timestamp)

    def last_timestamp(self, *, wait: bool = True) -> tuple[int, int]:
        """Return timestamp and relative offset of the last time index entry, or (-1, 0).

        Without ``wait``, raise :class:`WouldWait` instead of waiting for the disk.
        """
        index = self.times
        if index is not None and (index.tail or not index.file_size):
            return time_index.last(index.tail)
        with self._on_disk(index, names.TIME_INDEX, _TIME_SIZE, wait=wait) as (read, count):
            return time_index.last(read(count - 1, 1) if count else b"")

    def data(self) -> tuple[bytes, bytes, list[AbortedTxn]]:
        """Return offset index, time index and aborted transactions, from memory and disk."""
        files = self._files
        offsets = files.read(names.INDEX) if self.offsets is None else self.offsets.data(files)
        times = files.read(names.TIME_INDEX) if self.times is None else self.times.data(files)
        return offsets, times, list(self.aborted.entries())

    @contextmanager
    def _on_disk(
        self, index: GrowingIndex | None, suffix: str, size: int, *, wait: bool = True
    ) -> Iterator[tuple[offset_index.Read, int]]:
        """Yield a reader of an index's entries on disk, and their count; close the file afterwards.

        For a growing index these are only the entries already moved to its file.
        """
        file = self._files.open(suffix) if index is None else index.open(self._files)
        try:
            try:
                count = file.size() // size
            except FileNotFoundError:
                count = 0
            if index is not None:
                count = min(count, index.file_size // size)
            yield offset_index.on_disk(reader(file, wait=wait), size), count
        finally:
            file.close()


def _piece_bytes() -> int:
    """Return the size of a piece of the offset index, in bytes."""
    return growing_index.PIECE_ENTRIES * _OFFSET_SIZE
