"""One fsync of a log: what to sync, done in a thread."""

from collections.abc import Sequence

import attrs

from kwire.log.disk import Disk, pin_all
from kwire.log.segment import Segment


@attrs.define(eq=False)
class Flush:
    """Segments to make durable up to ``end_offset``; their files stay pinned until ``close``.

    Of a segment that is still appended to only the log file is synced: its indexes are in memory,
    and recovery reads it again whatever was synced.
    """

    _disk: Disk
    _directory: str
    _segments: Sequence[Segment]
    _appended_to: Segment | None
    end_offset: int
    generation: int
    """Of the log's truncations: what was synced before one does not speak for what came after."""
    new_files: bool
    new_directory: bool
    """The partition's own name may be lost with the power, and everything with it."""
    worked: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Raises OSError, with nothing pinned."""
        pin_all(segment.file for segment in self._segments)

    def run(self) -> None:
        """Raises OSError; what is not known to be durable then never will be."""
        for segment in self._segments:
            segment.sync(indexes=segment is not self._appended_to)
        if self.new_files:
            self._disk.sync_directory(self._directory)
        if self.new_directory:
            self._disk.sync_directory()
        self.worked = True

    def close(self) -> None:
        for segment in self._segments:
            segment.file.unpin()
