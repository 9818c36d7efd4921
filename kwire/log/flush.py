"""One fsync of a log: what to sync, done in a thread."""

from collections.abc import Sequence

import attrs

from kwire.log.disk import Disk
from kwire.log.segment import Segment


@attrs.define(eq=False)
class Flush:
    """Segments to make durable up to ``end_offset``; their files stay pinned until ``close``.

    Of the active segment only the log file is synced: its indexes are in memory, and recovery
    reads it again whatever was synced.
    """

    _disk: Disk
    _directory: str
    _segments: Sequence[Segment]
    _active: Segment
    end_offset: int
    _new_files: bool
    worked: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        for segment in self._segments:
            segment.file.pin()

    def run(self) -> None:
        """Raises OSError; what is not known to be durable then never will be."""
        for segment in self._segments:
            if segment is self._active:
                segment.file.sync()
            else:
                segment.sync()
        if self._new_files:
            self._disk.sync_directory(self._directory)
        self.worked = True

    def close(self) -> None:
        for segment in self._segments:
            segment.file.unpin()
