"""One flush of a log, run in a thread, and the list of files for the next flush.

Rules: the thread changes nothing in memory, so readers continue meanwhile. A log has one flush at a
time, and is not truncated, closed or removed until it has ended. The next flush also syncs what a
failed flush should have synced.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs

from kwire.log.disk import Disk, pin_all
from kwire.log.formats import names
from kwire.log.segments.segment import Segment


@attrs.define(eq=False, repr=False)
class UnsyncedWrites:
    """The writes of a log that are unsynced or still to be made, except the segments' records."""

    closed: list[Segment] = attrs.Factory(list)
    """Closed segments whose indexes are only in memory."""
    files: dict[str, Callable[[], bytes] | None] = attrs.Factory(dict)
    """Files to sync in the partition's directory; the value, if any, returns content to write
    first."""
    lazy: tuple[str, ...] = ()
    """Written files that the next flush syncs, but that do not cause a flush by themselves."""
    has_removed: bool = False
    """True if old segments were removed: their names could reappear after a power loss."""
    has_cut: bool = False
    """True if the log was truncated: the removed records could reappear after a power loss."""
    has_new_names: bool = True
    """True if files were created or removed in the partition's directory."""
    has_new_directory: bool = True
    """True if a power loss may remove the partition's own directory, with everything in it."""

    def __bool__(self) -> bool:
        """Return whether a flush is needed even if all records are synced."""
        return bool(self.closed or self.files or self.has_removed or self.has_cut)

    def forget(self, segment: Segment) -> None:
        """Drop the indexes of a segment that was removed or is being appended to again."""
        if segment in self.closed:
            self.closed.remove(segment)
        for suffix in names.SEGMENT_SUFFIXES[1:]:
            self.files.pop(segment.files.unmarked_name(suffix), None)

    def sync_later(self, name: str) -> None:
        """Have the next flush sync a written file; this does not cause a flush."""
        if name not in self.lazy:
            self.lazy = (*self.lazy, name)

    def put_back(self, other: "UnsyncedWrites") -> None:
        """Restore the work of a failed flush."""
        self.closed = other.closed + self.closed
        self.files = other.files | self.files
        for name in other.lazy:
            self.sync_later(name)
        self.has_removed |= other.has_removed
        self.has_cut |= other.has_cut
        self.has_new_names |= other.has_new_names
        self.has_new_directory |= other.has_new_directory


@attrs.define(eq=False, repr=False)
class Flush:
    """Segments to make durable up to ``end_offset``, whose files stay pinned until ``close``."""

    _disk: Disk
    _directory: str
    _segments: Sequence[Segment]
    unsynced: UnsyncedWrites
    end_offset: int
    indexed_end: int
    """Segments below this offset have their indexes on disk once this flush has succeeded."""
    has_succeeded: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Pin the segments' files; if this raises OSError, none is pinned."""
        pin_all(segment.file for segment in self._segments)

    def run(self) -> None:
        """Write and sync everything; raises OSError.

        After an error, it is impossible to tell which data is durable.
        """
        unsynced = self.unsynced
        for segment in self._segments:
            segment.file.sync()
        for segment in unsynced.closed:
            segment.write_index_files()
            for suffix in names.SEGMENT_SUFFIXES[1:]:
                self._sync(segment.files.name(suffix))
        for name, encode in unsynced.files.items():
            if encode is not None:
                self._disk.write(f"{self._directory}/{name}", encode())
            self._sync(name)
        for name in sorted(set(unsynced.lazy) - unsynced.files.keys()):
            self._sync(name)
        if (
            unsynced.has_new_names
            or unsynced.has_removed
            or unsynced.has_cut
            or unsynced.closed
            or unsynced.files
        ):
            self._disk.sync_directory(self._directory)
        if unsynced.has_new_directory:
            self._disk.sync_directory()
        self.has_succeeded = True

    def close(self) -> None:
        """Unpin the segments' files."""
        for segment in self._segments:
            segment.file.unpin()

    def _sync(self, name: str) -> None:
        """Sync a small file, which may have been removed meanwhile."""
        with suppress(FileNotFoundError):
            self._disk.sync(f"{self._directory}/{name}")
