"""An index of the active segment: the newest entries are in memory, the older ones in a file.

Rules: entries move to the file in pieces. So the memory per index is bounded, and the first append
after a restart reads no entries. The file of a new segment's index has the suffix
:data:`kwire.log.formats.names.GROWING` until a flush has synced the segment, because at a start a
segment with an ``.index`` file counts as synced. An index that was on disk before the first append
continues in its existing file. After a crash, recovery ignores the contents of both kinds of files.

If the file is missing or damaged, the entries in memory are still valid, and a search checks the
entries that it reads from the file.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kwire.log.disk import File
from kwire.log.formats import offset_index
from kwire.log.formats.names import GROWING
from kwire.log.segments.files import SegmentFiles
from kwire.records.header import Buffer

PIECE_ENTRIES: Final = 512
"""The number of entries that move to the file together, once that many are in memory."""


class GrowingIndex:
    """The entries of one index, each of ``entry_size`` bytes."""

    __slots__ = ("entry_size", "is_new", "size", "suffix", "tail")

    def __init__(self, suffix: str, entry_size: int, size: int = 0) -> None:
        """Start with an empty index, or with the first ``size`` bytes of its existing file."""
        self.suffix = suffix
        self.entry_size = entry_size
        self.is_new = not size
        """True if the file has the suffix :data:`names.GROWING`."""
        self.size = size
        """The bytes of all entries; code that appends to :attr:`tail` must increase it too."""
        self.tail = bytearray()
        """The newest entries, which are in memory."""

    @property
    def file_size(self) -> int:
        """The size of the entries in the file, in bytes."""
        return self.size - len(self.tail)

    def shadow(self) -> "GrowingIndex":
        """Return the entries in the file as a separate index, for a thread to read."""
        part = GrowingIndex(self.suffix, self.entry_size, self.file_size)
        part.is_new = self.is_new
        return part

    def in_memory(self) -> tuple[offset_index.Read, int]:
        """Return a reader of the entries in memory, and their count."""
        size = self.entry_size
        return offset_index.memory(self.tail, size), len(self.tail) // size

    def open(self, files: SegmentFiles) -> File:
        """Open the file with the older entries; raises FileNotFoundError if it does not exist."""
        if self.is_new:
            file = files.open(self.suffix + GROWING)
            try:
                file.size()
            except FileNotFoundError:  # A flush has given the file its final name.
                file.close()
            else:
                return file
        return files.open(self.suffix)

    def data(self, files: SegmentFiles) -> bytes:
        """Return all entries; if the file is missing, only the entries in memory."""
        if not self.file_size:
            return bytes(self.tail)
        file = self.open(files)
        try:
            return file.read(0, self.file_size) + self.tail
        except FileNotFoundError:
            return bytes(self.tail)
        finally:
            file.close()

    # -- on the event loop

    def spill(self, files: SegmentFiles) -> None:
        """Move the oldest entries in memory to the file; after an error they stay in memory."""
        piece = bytes(self.tail[: PIECE_ENTRIES * self.entry_size])
        if not piece:
            return
        is_first = self.is_new and not self.file_size
        file = files.open(self.suffix + GROWING, create=True) if is_first else self.open(files)
        try:
            file.write((piece,), self.file_size)
        finally:
            file.close()
        del self.tail[: len(piece)]

    def keep_while(self, files: SegmentFiles, holds: Callable[[Buffer], bool]) -> None:
        """Keep the entries before the first one for which ``holds`` is false; drop the rest."""
        read, count = self.in_memory()
        tail_size = offset_index.count_while(read, count, holds) * self.entry_size
        file_size = self.file_size
        del self.tail[tail_size:]
        if not tail_size and file_size:
            file = self.open(files)
            try:
                read = offset_index.on_disk(file.read, self.entry_size)
                count = min(file_size, file.size()) // self.entry_size
                file_size = offset_index.count_while(read, count, holds) * self.entry_size
            except FileNotFoundError:
                file_size = 0
            finally:
                file.close()
        self.size = file_size + tail_size

    def mark_growing(self, files: SegmentFiles) -> None:
        """Take the final name from the file with the older entries, or remove an outdated file."""
        path, has_entries = files.path(self.suffix), False
        if self.file_size:
            file = self.open(files)
            has_entries = file.path == path
            file.close()
        if has_entries:
            with suppress(FileNotFoundError):
                files.disk.rename(path, path + GROWING)
                self.is_new = True
        else:
            files.disk.remove(path)

    # -- in any thread

    def write(self, files: SegmentFiles) -> None:
        """Write the whole index under its final name; nothing in memory changes.

        The call may be retried after an error.
        """
        if not self.file_size:
            files.write(self.suffix, self.tail)
            return
        file = self.open(files)
        try:
            if self.tail:
                file.write((self.tail,), self.file_size)
            if file.size() > self.size:  # The log was truncated.
                file.truncate(self.size)
        except FileNotFoundError:
            files.write(self.suffix, self.tail)
            return
        finally:
            file.close()
        if self.is_new:
            with suppress(FileNotFoundError):  # An earlier attempt has already renamed the file.
                files.disk.rename(files.path(self.suffix + GROWING), files.path(self.suffix))
