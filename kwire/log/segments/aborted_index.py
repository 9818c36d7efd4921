"""The index of a segment's aborted transactions, in memory or on disk.

Rules: while a segment has no file, its entries are in memory, until a flush or a clean stop writes
them. An existing file is read when a search needs its entries, not when appends to the segment
resume; new entries then follow the entries of the file. Without aborted transactions there is no
file (:mod:`kwire.log.formats.txn_index`).
"""

from bisect import bisect_left
from operator import attrgetter
from typing import Final

from kwire.log.cold_lookups import WouldWait, reader
from kwire.log.formats import names, txn_index
from kwire.log.formats.txn_index import AbortedTxn, Entries, MemoryEntries, PackedEntries
from kwire.log.segments.files import SegmentFiles
from kwire.records.header import Buffer

SUMMARY_BYTES: Final = 64 << 10
"""The size of the largest file that is summarized on the event loop; 3 MB take 10 ms."""


class AbortedLoad:
    """A file of aborted transactions that a thread reads and summarizes for the event loop."""

    __slots__ = ("_files", "entries")

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.entries: PackedEntries | None = None

    def run(self) -> PackedEntries:
        """Read the file in a thread, unless already done, and return its entries."""
        if self.entries is None:
            entries = PackedEntries(self._files.read(names.TXN_INDEX))
            entries.summarize()
            self.entries = entries
        return self.entries


class AbortedIndex:
    """The aborted transactions whose markers are in one segment, in the markers' order."""

    __slots__ = ("_added", "_files", "_is_changed", "_load", "_memory", "_packed", "has_no_file")

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._memory: MemoryEntries | None = None
        """All entries, if the segment had no file when appends to it began; else None."""
        self._packed: PackedEntries | None = None
        """The entries of the file and the added ones, 34 bytes each; None until a search needs
        them."""
        self._added: list[AbortedTxn] = []
        """The entries that were added while the file had not been read."""
        self._is_changed = False
        """True if entries were added that the file lacks."""
        self._load: AbortedLoad | None = None
        """A thread's read of the file; dropped once its entries are used or replaced."""
        self.has_no_file = False
        """True if the segment is known to have no file of aborted transactions."""

    @property
    def may_have_entries(self) -> bool:
        """True if the segment may have abort markers."""
        return bool(self._memory) if self._memory is not None else not self.has_no_file

    def start(self) -> None:
        """Start without entries, for a new segment or a rebuild."""
        self.replace([])

    def load(self) -> None:
        """Prepare for appends."""
        if self.has_no_file and self._memory is None:
            self._memory = MemoryEntries()

    def add(self, entry: AbortedTxn) -> None:
        """Append an aborted transaction whose marker is in this segment, the active one."""
        self._is_changed = True
        if self._memory is not None:
            self._memory.append(entry)
            return
        self.has_no_file = False
        if self._packed is not None:
            self._packed.append(entry)
        else:
            self._added.append(entry)

    def replace(self, entries: list[AbortedTxn]) -> None:
        """Replace all entries; the new ones are in memory."""
        self._memory = MemoryEntries(entries)
        self._packed, self._added, self._load = None, [], None

    def truncate(self, end_offset: int) -> None:
        """Drop the transactions that ended at or after ``end_offset``, where the log is cut."""
        entries = self.entries()
        count = bisect_left(entries, end_offset, key=attrgetter("last_offset"))
        if not count:
            self.start()
        elif isinstance(entries, MemoryEntries):
            self._memory = entries.first(count)
        elif count < len(entries):
            self._packed, self._is_changed = entries.first(count), True

    def write(self) -> None:
        """Write the file, or remove it if there are no entries; nothing in memory changes."""
        files = self.pack()
        for suffix, data in files.items():
            self._files.write(suffix, data)
        if self._memory is not None and not files:
            self._files.remove(names.TXN_INDEX, names.ABORTED)

    def pack(self) -> dict[str, Buffer]:
        """Return the files to write, by suffix, in write order; may run in any thread.

        Meanwhile the event loop may load the entries of the file.
        """
        added = b"".join(map(txn_index.pack, self._added))
        if self._memory is not None:
            data: Buffer = b"".join(map(txn_index.pack, self._memory))
        elif not self._is_changed:
            return {}
        elif self._packed is not None:
            data = self._packed.data
        else:
            data = self._files.read(names.TXN_INDEX) + added
        return {names.ABORTED: b"", names.TXN_INDEX: data} if data else {}

    def drop(self) -> None:
        """Drop the entries from memory; they must be on disk."""
        if self._memory is not None:
            self.has_no_file = not self._memory
        self._memory = self._packed = self._load = None
        self._added, self._is_changed = [], False

    def entries(self, *, wait: bool = True) -> Entries:
        """Return the entries; the first call reads the file.

        Without ``wait``, raise :class:`WouldWait` instead of waiting for the disk or summarizing a
        large file.
        """
        if self._memory is not None:
            return self._memory
        if self._packed is None:
            if self.has_no_file:
                return PackedEntries()
            packed = self._read(wait=wait)
            for entry in self._added:
                packed.append(entry)
            self._packed, self._load = packed, None
            # Cleared last, so that a flush in a thread finds the entries in one of the two places.
            self._added = []
        return self._packed

    def _read(self, *, wait: bool) -> PackedEntries:
        """Return the entries of the file."""
        if self._load is not None and self._load.entries:
            return self._load.entries
        file = self._files.open(names.TXN_INDEX)
        try:
            try:
                size = file.size()
            except FileNotFoundError:
                self.has_no_file = not self._added
                return PackedEntries()
            if size > SUMMARY_BYTES and not wait:
                raise WouldWait
            return PackedEntries(bytes(reader(file, wait=wait)(0, size)))
        finally:
            file.close()

    def load_in_thread(self) -> AbortedLoad | None:
        """Return a job that reads the file in a thread, or None if no read is needed.

        Once the job has run, :meth:`entries` uses its result.
        """
        if self._memory is not None or self._packed is not None or self.has_no_file:
            return None
        if self._load is None:
            self._load = AbortedLoad(self._files)
        return self._load
