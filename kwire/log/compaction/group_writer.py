"""The files of one new segment, written beside the log as ``.cleaned``.

Rules: batches are collected into writes of the job's buffer size. The indexes stay in memory until
the end; they get the same entries as those of an appended segment. The log's own files are not
touched.
"""

from typing import Final

from kwire.log.compaction.batch_filter import KeptBatch
from kwire.log.compaction.job import CleaningFailed, NewSegment
from kwire.log.compaction.source import Pace
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.segments.segment import Segment

UNLIMITED: Final = 1 << 62


def _ignore(size: int) -> None: ...


class GroupWriter:
    """A segment that is being written."""

    __slots__ = (
        "_buffer_bytes",
        "_buffered",
        "_config",
        "_disk",
        "_log",
        "_pace",
        "_segment",
        "_written",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        base_offset: int,
        buffer_bytes: int = UNLIMITED,
        pace: Pace = _ignore,
    ) -> None:
        """Create the log file, or truncate one that an earlier pass left behind.

        Without ``buffer_bytes``, batches are written by :meth:`write` and :meth:`finish` alone.
        """
        self._disk = disk
        self._config = config
        self._buffer_bytes = buffer_bytes
        self._pace = pace
        # It only keeps account of the batches; its own files are not opened.
        self._segment = Segment(disk, directory, base_offset, 0, config)
        self._segment.start_indexes()
        self._buffered: list[bytes] = []
        self._written = 0
        self._log = disk.open(self._path(names.LOG), create=True)
        if self._log.size():
            self._log.truncate(0)

    @property
    def base_offset(self) -> int:
        return self._segment.base_offset

    @property
    def size(self) -> int:
        """Bytes of all batches so far."""
        return self._segment.size

    def has_room(self, size: int, last_offset: int) -> bool:
        """Return whether a log would append such a batch to this segment, or begin another."""
        segment, config = self._segment, self._config
        offsets, times = segment.indexes.offsets, segment.indexes.times
        assert offsets is not None
        assert times is not None
        return (
            segment.size + size <= config.segment_bytes
            and self.can_hold(last_offset)
            and offsets.size <= config.segment_index_bytes - offset_index.ENTRY_SIZE
            and times.size <= config.segment_index_bytes - 2 * time_index.ENTRY_SIZE
        )

    def can_hold(self, last_offset: int) -> bool:
        """Return whether the indexes can hold an offset."""
        return last_offset <= self._segment.last_offset_max

    def append(self, batch: KeptBatch) -> None:
        """Append a batch; raises :class:`CleaningFailed` if the indexes cannot hold its offset."""
        segment = self._segment
        if not self.can_hold(batch.next_offset - 1):
            raise CleaningFailed(
                f"offset {batch.next_offset - 1} is too far from the segment's base offset "
                f"{segment.base_offset}: directory={segment.files.directory}"
            )
        size = len(batch.data)
        if segment.size - self._written + size > self._buffer_bytes:
            self.write()
        # A copy, unless the batch was rebuilt: a part of a read would keep all of it in memory.
        self._buffered.append(bytes(batch.data))
        segment.note(size, batch.next_offset, batch.max_timestamp, segment.interval)

    def finish(self, aborted: list[AbortedTxn], modified_ms: int) -> NewSegment:
        """Write the remaining batches and the indexes, sync all files; return what was written."""
        self.write()
        segment = self._segment
        segment.close_indexes()
        segment.indexes.aborted.replace(aborted)
        log_path = self._path(names.LOG)
        self._disk.set_modified(log_path, modified_ms)
        self._log.sync()
        files = segment.indexes.pack()
        for suffix, data in files.items():
            self._disk.write(self._path(suffix), data)
            self._disk.sync(self._path(suffix))
            self._pace(len(data))
        self._disk.sync_directory(segment.files.directory)
        return NewSegment(
            base_offset=segment.base_offset,
            size=segment.size,
            suffixes=(names.LOG, *files),
            largest_timestamp_ms=segment.max_timestamp,
            largest_timestamp_offset=segment.max_timestamp_offset,
            modified_ms=modified_ms,
        )

    def close(self) -> None:
        self._log.close()

    def write(self) -> None:
        """Write the batches that are still in the buffer."""
        if self._buffered:
            self._log.write(self._buffered, self._written)
            size = self._segment.size - self._written
            self._written += size
            self._pace(size)
            self._buffered.clear()

    def _path(self, suffix: str) -> str:
        return f"{self._segment.files.path(suffix)}{names.CLEANED}"
