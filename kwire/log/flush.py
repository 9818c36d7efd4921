"""One flush of a log, done in a thread, and the account of what the next one has to do.

Rules: the thread changes nothing in memory, so readers go on meanwhile; a log has one flush at a
time and is not truncated, closed or taken away before that has ended. What a flush that failed
was to sync is left for the next one.
"""

from collections.abc import Sequence
from contextlib import suppress

import attrs

from kwire.log import names
from kwire.log.disk import Disk, pin_all
from kwire.log.segment import Segment


@attrs.define(eq=False)
class Unsynced:
    """What a log has written, or still has to write, beside the segments' records."""

    closed: list[Segment] = attrs.Factory(list)
    """Closed segments whose indexes are only in memory."""
    files: dict[str, bytes | None] = attrs.Factory(dict)
    """Files of the partition's directory to sync, and what to write first unless that is done."""
    lazy: set[str] = attrs.Factory(set)
    """Written files that are synced with the next flush, but are no reason for one."""
    removed: bool = False
    """Old segments were removed: their names could come back with the power."""
    cut: bool = False
    """The log was truncated: what was cut off could come back with the power."""
    names: bool = True
    """Files came or went."""
    directory: bool = True
    """The partition's own name may be lost with the power, and everything with it."""

    def __bool__(self) -> bool:
        """Whether there is reason for a flush even if all records are synced."""
        return bool(self.closed or self.files or self.removed or self.cut)

    def forget(self, segment: Segment) -> None:
        """A segment was removed, or is appended to again: its indexes are not to be written."""
        if segment in self.closed:
            self.closed.remove(segment)
        for suffix in names.SEGMENT_SUFFIXES[1:]:
            self.files.pop(segment.name(suffix), None)

    def put_back(self, other: "Unsynced") -> None:
        """Take over what a flush failed to do."""
        self.closed = other.closed + self.closed
        self.files = other.files | self.files
        self.lazy |= other.lazy
        self.removed |= other.removed
        self.cut |= other.cut
        self.names |= other.names
        self.directory |= other.directory


@attrs.define(eq=False)
class Flush:
    """Segments to make durable up to ``end_offset``; their files stay pinned until ``close``."""

    _disk: Disk
    _directory: str
    _segments: Sequence[Segment]
    unsynced: Unsynced
    end_offset: int
    indexed_end: int
    """The segments below it have their indexes on disk once this has worked."""
    worked: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Raises OSError, with nothing pinned."""
        pin_all(segment.file for segment in self._segments)

    def run(self) -> None:
        """Raises OSError; what is not known to be durable then never will be."""
        unsynced = self.unsynced
        for segment in self._segments:
            segment.file.sync()
        for segment in unsynced.closed:
            segment.write_index_files()
            for suffix in names.SEGMENT_SUFFIXES[1:]:
                self._sync(segment.name(suffix))
        for name, data in unsynced.files.items():
            if data is not None:
                self._disk.write(f"{self._directory}/{name}", data)
            self._sync(name)
        for name in sorted(unsynced.lazy - unsynced.files.keys()):
            self._sync(name)
        if unsynced.names or unsynced.removed or unsynced.cut or unsynced.closed or unsynced.files:
            self._disk.sync_directory(self._directory)
        if unsynced.directory:
            self._disk.sync_directory()
        self.worked = True

    def close(self) -> None:
        """Let go of the segments' files."""
        for segment in self._segments:
            segment.file.unpin()

    def _sync(self, name: str) -> None:
        """Sync a small file, which may have been removed meanwhile."""
        with suppress(FileNotFoundError):
            self._disk.sync(f"{self._directory}/{name}")
