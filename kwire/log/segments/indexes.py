"""The three indexes of a segment: offsets, timestamps and aborted transactions.

Rules: they are in memory while the segment is appended to, and until a flush or a clean stop has
written them. From then on they are files that are searched where they are. They hold offsets
relative to the segment's base offset.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kwire.log.cold import WouldWait, reader
from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.formats.txn_index import AbortedTxn, Entries, MemoryEntries, PackedEntries
from kwire.log.segments.files import SegmentFiles
from kwire.records.header import Buffer

SUMMARY_BYTES: Final = 64 << 10
"""A larger file of aborted transactions is summarized in a thread: 3 MB take 10 ms."""


class AbortedLoad:
    """A file of aborted transactions that a thread reads and summarizes for the event loop."""

    __slots__ = ("_files", "entries")

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.entries: PackedEntries | None = None

    def run(self) -> PackedEntries:
        """Read the file in a thread, unless that was done; return its entries."""
        if self.entries is None:
            entries = PackedEntries(self._files.read(names.TXN_INDEX))
            entries.summarize()
            self.entries = entries
        return self.entries


class SegmentIndexes:
    """The indexes of one segment, in memory or on disk."""

    __slots__ = (
        "_aborted",
        "_aborted_file",
        "_aborted_load",
        "_files",
        "has_no_aborted",
        "offsets",
        "times",
    )

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.offsets: bytearray | None = None
        """The offset index; None while it is on disk."""
        self.times: bytearray | None = None
        """The time index; None while it is on disk."""
        self._aborted: MemoryEntries | None = None
        """The aborted transactions; None while they are on disk."""
        self._aborted_file: PackedEntries | None = None
        """The aborted transactions on disk, once a read needed them: 34 bytes each."""
        self._aborted_load: AbortedLoad | None = None
        """The same as a thread reads them; dropped when the file changes."""
        self.has_no_aborted = False
        """Whether the segment is known to have no file of aborted transactions."""

    def start(self) -> None:
        """Begin with empty indexes in memory."""
        self.offsets, self.times, self._aborted = bytearray(), bytearray(), MemoryEntries()
        self._aborted_file = self._aborted_load = None

    def load(self) -> None:
        """Read the indexes into memory to append to them."""
        if self.offsets is None:
            self._aborted = MemoryEntries(self.aborted_transactions())
            self._aborted_file = self._aborted_load = None
            offsets, times = self._files.read(names.INDEX), self._files.read(names.TIME_INDEX)
            self.offsets, self.times = bytearray(offsets), bytearray(times)

    def drop(self) -> None:
        """Drop the indexes from memory; they are on disk."""
        if self._aborted is not None:
            self.has_no_aborted = not self._aborted
        self.offsets = self.times = self._aborted = None
        self._aborted_file = self._aborted_load = None

    def write(self) -> None:
        """Write the indexes from memory to disk; nothing in memory changes."""
        for suffix, data in self.pack().items():
            self._files.write(suffix, data)
        if not self._aborted:
            self._files.remove(names.TXN_INDEX, names.ABORTED)

    def pack(self) -> dict[str, Buffer]:
        """Return the files of the indexes in memory, by suffix, in the order of their writes."""
        assert self.offsets is not None
        assert self.times is not None
        files: dict[str, Buffer] = {names.INDEX: self.offsets, names.TIME_INDEX: self.times}
        if self._aborted:
            files[names.ABORTED] = b""
            files[names.TXN_INDEX] = b"".join(map(txn_index.pack, self._aborted))
        return files

    def truncate(self, end_offset: int, relative: int, position: int) -> None:
        """Drop the entries at or past a cut at ``end_offset``, in memory.

        ``relative`` is the same offset minus the base offset, ``position`` its batch's position.
        """
        self.load()
        assert self.offsets is not None
        assert self.times is not None
        offset_index.keep_below(self.offsets, relative, position)
        time_index.keep_below(self.times, relative)
        self._aborted = MemoryEntries(
            entry for entry in self.aborted_transactions() if entry.last_offset < end_offset
        )

    # -- appending

    def add(self, relative: int, position: int, timestamp: int, timestamp_relative: int) -> None:
        """Append an entry for a batch, and one for the largest timestamp so far."""
        self.load()
        assert self.offsets is not None
        self.offsets += offset_index.ENTRY.pack(relative, position)
        self.add_timestamp(timestamp, timestamp_relative)

    def add_timestamp(self, timestamp: int, relative: int) -> None:
        """Append an entry for the largest timestamp so far, unless the last entry has it."""
        self.load()
        assert self.times is not None
        time_index.maybe_append(self.times, timestamp, relative)

    def add_aborted(self, entry: AbortedTxn) -> None:
        """Append an aborted transaction whose marker is in the segment."""
        self.load()
        assert self._aborted is not None
        self._aborted.append(entry)

    def replace_aborted(self, entries: list[AbortedTxn]) -> None:
        """Set the aborted transactions, in memory."""
        self.load()
        self._aborted = MemoryEntries(entries)

    # -- searching

    def at_position(self, position: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return the first entry of the offset index at ``position`` or behind it.

        Without ``wait`` it raises :class:`WouldWait` rather than wait for the disk.
        """
        size = offset_index.ENTRY_SIZE
        with self._entries(self.offsets, names.INDEX, size, wait=wait) as entries:
            return offset_index.at_position(*entries, position)

    def floor(self, relative: int, *, wait: bool = True) -> tuple[int, int] | None:
        """Return the last entry of the offset index whose offset is at most ``relative``.

        Without ``wait`` it raises :class:`WouldWait` rather than wait for the disk.
        """
        size = offset_index.ENTRY_SIZE
        with self._entries(self.offsets, names.INDEX, size, wait=wait) as entries:
            return offset_index.floor(*entries, relative)

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry of the time index that is older than ``timestamp``."""
        with self._entries(self.times, names.TIME_INDEX, time_index.ENTRY_SIZE) as entries:
            return time_index.before(*entries, timestamp)

    def have_sane_ends(self, log_size: int) -> bool:
        """Return whether both indexes begin and end as those of a log file of this size can."""
        size = offset_index.ENTRY_SIZE
        with self._entries(self.offsets, names.INDEX, size) as entries:
            if not offset_index.has_sane_ends(*entries, log_size):
                return False
        with self._entries(self.times, names.TIME_INDEX, time_index.ENTRY_SIZE) as entries:
            return time_index.has_sane_ends(*entries)

    def has_lost_time_index(self) -> bool:
        """Whether the time index is neither in memory nor on disk, though the log file is there.

        A segment that was removed has neither file; a paused search may still hold it.
        """
        exists = self._files.exists
        return self.times is None and not exists(names.TIME_INDEX) and exists(names.LOG)

    def last_timestamp(self) -> tuple[int, int]:
        """Return timestamp and relative offset of the last time index entry, or (-1, 0)."""
        size = time_index.ENTRY_SIZE
        with self._entries(self.times, names.TIME_INDEX, size) as (read, count):
            return time_index.last(bytes(read(count - 1, 1)) if count else b"")

    @property
    def may_have_aborted(self) -> bool:
        """Whether the segment may have abort markers."""
        return bool(self._aborted) if self._aborted is not None else not self.has_no_aborted

    def aborted_transactions(self, *, wait: bool = True) -> Entries:
        """Return the transactions whose abort markers are in the segment, in the markers' order.

        A file is read once.  Without ``wait`` it raises :class:`WouldWait` rather than wait for
        the disk, or summarize a large file.
        """
        if self._aborted is not None:
            return self._aborted
        if self._aborted_file is not None:
            return self._aborted_file
        if self.has_no_aborted:
            return PackedEntries()
        if self._aborted_load is not None and self._aborted_load.entries:
            self._aborted_file, self._aborted_load = self._aborted_load.entries, None
            return self._aborted_file
        file = self._files.open(names.TXN_INDEX)
        try:
            try:
                size = file.size()
            except FileNotFoundError:
                self.has_no_aborted = True
                return PackedEntries()
            if size > SUMMARY_BYTES and not wait:
                raise WouldWait
            data = reader(file, wait=wait)(0, size)
        finally:
            file.close()
        self._aborted_file = PackedEntries(bytes(data))
        return self._aborted_file

    def aborted_load(self) -> AbortedLoad | None:
        """Return a read of the aborted transactions for a thread; None if none is needed.

        The next look at them takes what it has read.
        """
        if self._aborted is not None or self._aborted_file is not None or self.has_no_aborted:
            return None
        if self._aborted_load is None:
            self._aborted_load = AbortedLoad(self._files)
        return self._aborted_load

    def data(self) -> tuple[bytes, bytes, list[AbortedTxn]]:
        """Return offset index, time index and aborted transactions, wherever they are."""
        offsets = self._files.read(names.INDEX) if self.offsets is None else bytes(self.offsets)
        times = self._files.read(names.TIME_INDEX) if self.times is None else bytes(self.times)
        return offsets, times, list(self.aborted_transactions())

    @contextmanager
    def _entries(
        self, data: bytearray | None, suffix: str, size: int, *, wait: bool = True
    ) -> Iterator[tuple[offset_index.Read, int]]:
        """Yield a reader of an index's entries, and their count; close its file afterwards."""
        if data is not None:
            yield offset_index.memory(data, size), len(data) // size
            return
        file = self._files.open(suffix)
        try:
            try:
                count = file.size() // size
            except FileNotFoundError:
                count = 0
            yield offset_index.on_disk(reader(file, wait=wait), size), count
        finally:
            file.close()
