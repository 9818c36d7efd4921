"""The index of a segment's aborted transactions, in memory or on disk.

Rules: a segment that has no file yet has its entries in memory until a flush or a clean stop has
written them. A file is read when a search needs it, not when the segment is appended to again:
entries that are added then are put behind those of the file. Without aborted transactions there is
no file (:mod:`kwire.log.formats.txn_index`).
"""

from typing import Final

from kwire.log.cold import WouldWait, reader
from kwire.log.formats import names, txn_index
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


class AbortedIndex:
    """The aborted transactions whose markers are in one segment, in the markers' order."""

    __slots__ = ("_added", "_files", "_is_changed", "_load", "_memory", "_packed", "has_no_file")

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._memory: MemoryEntries | None = None
        """All entries of a segment that had no file when it began to grow; else None."""
        self._packed: PackedEntries | None = None
        """The entries of the file, once a search needed them, with those added: 34 bytes each."""
        self._added: list[AbortedTxn] = []
        """The entries that were added while those of the file were not read."""
        self._is_changed = False
        """Whether entries were added that the file lacks."""
        self._load: AbortedLoad | None = None
        """The entries of the file as a thread reads them; dropped when the file changes."""
        self.has_no_file = False
        """Whether the segment is known to have no file of aborted transactions."""

    @property
    def may_have_entries(self) -> bool:
        """Whether the segment may have abort markers."""
        return bool(self._memory) if self._memory is not None else not self.has_no_file

    def start(self) -> None:
        """Begin without entries."""
        self.replace([])

    def load(self) -> None:
        """Prepare to append."""
        if self.has_no_file and self._memory is None:
            self._memory = MemoryEntries()

    def add(self, entry: AbortedTxn) -> None:
        """Append an aborted transaction whose marker is in the segment, which is active."""
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
        """Set all entries, in memory."""
        self._memory = MemoryEntries(entries)
        self._packed, self._added, self._load = None, [], None

    def truncate(self, end_offset: int) -> None:
        """Drop the entries at or past a cut at ``end_offset``."""
        self.replace([entry for entry in self.entries() if entry.last_offset < end_offset])

    def write(self) -> None:
        """Write the file, or remove it if there are no entries; nothing in memory changes."""
        files = self.pack()
        for suffix, data in files.items():
            self._files.write(suffix, data)
        if self._memory is not None and not files:
            self._files.remove(names.TXN_INDEX, names.ABORTED)

    def pack(self) -> dict[str, Buffer]:
        """Return the files to write, by suffix, in the order of their writes; in any thread.

        The event loop may read the entries of the file meanwhile.
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
        """Drop the entries from memory; they are on disk."""
        if self._memory is not None:
            self.has_no_file = not self._memory
        self._memory = self._packed = self._load = None
        self._added, self._is_changed = [], False

    def entries(self, *, wait: bool = True) -> Entries:
        """Return the entries.

        A file is read once.  Without ``wait`` it raises :class:`WouldWait` rather than wait for
        the disk, or summarize a large file.
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
            self._added = []  # After the assignment above, which a flush may be about to read.
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
        """Return a read of the file for a thread; None if none is needed.

        The next look at the entries takes what it has read.
        """
        if self._memory is not None or self._packed is not None or self.has_no_file:
            return None
        if self._load is None:
            self._load = AbortedLoad(self._files)
        return self._load
