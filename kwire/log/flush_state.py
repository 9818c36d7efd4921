"""The durability of a log: which writes are synced, and which the next flush has to sync.

Rules: a log has one flush at a time; while it runs, the log is not truncated and no segment is
removed. A failed flush leaves its work to the next one. Recovery trusts the indexes of segments
below ``indexed_end`` and rereads the batches of the others.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kwire.log.config import LogConfig
from kwire.log.disk_health import DiskErrorKind, classify
from kwire.log.error_mapping import storage_errors
from kwire.log.flush import Flush, UnsyncedWrites
from kwire.log.log_changes import LogChanges
from kwire.log.log_segments import LogSegments
from kwire.log.log_writer import LogWriter
from kwire.log.segments.segment import Segment

CLOSED_MAX: Final = 8
"""The number of closed segments that keep the positions of their newest batches until a flush."""
SEGMENTS_AT_ONCE: Final = 64
"""The number of segments that one part of a flush covers; their files stay open meanwhile."""


class FlushState:
    """The durability of one log."""

    __slots__ = (
        "_changes",
        "_closed_end",
        "_segments",
        "_writer",
        "cut_offset",
        "ended_cut_count",
        "indexed_end",
        "recovery_point",
        "running",
        "unsynced",
    )

    def __init__(self, segments: LogSegments, writer: LogWriter, changes: LogChanges) -> None:
        self._segments = segments
        self._writer = writer
        self._changes = changes
        self.recovery_point = 0
        """Everything below this offset is synced."""
        self.indexed_end = 0
        """Segments below this offset have their indexes on disk, synced."""
        self.cut_offset: int | None = None
        """The offset of a cut in progress; checkpoints must not contain a later log start."""
        self.ended_cut_count = 0
        """The number of cuts that have ended, whether or not the log was actually cut."""
        self.unsynced = UnsyncedWrites()
        self.running: Flush | None = None
        self._closed_end: int | None = None
        """The log's end once it is closed and all indexes are written; None before."""

    def stored_recovery_point(self, log_end_offset: int) -> int:
        """Return the recovery point for the checkpoint.

        Segments that end at or below the recovery point have their indexes on disk. Until a cut is
        synced, the recovery point is below the cut: new records will be appended to the segment
        before the cut, or it ends there, and a power loss can bring back the segments after it.
        """
        segments = self._segments
        index = segments.index_of(self.indexed_end)
        following = segments[index + 1 : index + 2]
        end_offset = following[0].base_offset if following else log_end_offset
        point = min(self.recovery_point, max(self.indexed_end, end_offset - 1))
        return min(point, max(self.recovery_point - 1, 0)) if self.cut_unsynced else point

    @property
    def _all_unsynced(self) -> tuple[UnsyncedWrites, ...]:
        """The unsynced writes, including those of the running flush."""
        running = self.running
        return (self.unsynced,) if running is None else (self.unsynced, running.unsynced)

    @property
    def cut_unsynced(self) -> bool:
        """Return whether a cut is in progress, or not synced yet."""
        return self.cut_offset is not None or any(writes.has_cut for writes in self._all_unsynced)

    @property
    def removal_unsynced(self) -> bool:
        """Return whether removed segments can reappear after a power loss."""
        return any(writes.has_removed for writes in self._all_unsynced)

    @property
    def name_unsynced(self) -> bool:
        """Return whether a power loss can remove the log's directory itself."""
        return any(writes.has_new_directory for writes in self._all_unsynced)

    def unwritten(self, name: str) -> Callable[[], bytes] | None:
        """Return a function that encodes content still to be written to a file, or None."""
        running = {} if self.running is None else self.running.unsynced.files
        return self.unsynced.files.get(name) or running.get(name)

    # -- flushes

    @property
    def is_one_flush(self) -> bool:
        """True if one flush can sync everything without pinning too many files."""
        segments = self._segments
        return len(segments) - segments.index_of(self.recovery_point) <= SEGMENTS_AT_ONCE

    def start_part(self, end_offset: int | None = None) -> Flush | None:
        """Return a flush as :meth:`start` does, but of at most :data:`SEGMENTS_AT_ONCE` segments.

        It may go beyond ``end_offset``. Indexes of later segments stay in memory, because at a
        start a segment with an index counts as synced. A cut counts as unsynced until everything is
        synced: after a recovery nobody knows where it was.
        """
        if self.is_one_flush:
            return self.start(end_offset)
        segments, has_cut = self._segments, self.unsynced.has_cut
        part_end = segments[segments.index_of(self.recovery_point) + SEGMENTS_AT_ONCE].base_offset
        flush = self.start(part_end, part_end)
        self.unsynced.has_cut = has_cut
        return flush

    def start(self, end_offset: int | None = None, indexed_end: int | None = None) -> Flush | None:
        """Return a flush of everything written (below ``end_offset``); None if nothing is unsynced.

        ``indexed_end``: the offset below which it completes the indexes, by default all closed
        segments. The indexes of segments with queued batches stay in memory. Run it in any thread,
        then pass it to :meth:`end`. Raises KafkaStorageError if the files cannot be opened.
        """
        assert self.running is None, "a flush is running"
        written_offset = self._writer.written_offset
        end_offset = written_offset if end_offset is None else min(end_offset, written_offset)
        # The flush includes the unsynced work of a cut: it has to sync the segment that was cut.
        end_offset = max(end_offset, self.recovery_point)
        unsynced, segments = self.unsynced, self._segments
        if indexed_end is None:
            closed_end = self._closed_end
            indexed_end = segments.active.base_offset if closed_end is None else closed_end
        closed = unsynced.closed
        unwritten = [s.base_offset for s in closed if s.written < s.size]
        indexed_end = min([indexed_end, *unwritten])
        unsynced.closed = [s for s in closed if s.base_offset < indexed_end]
        if end_offset <= self.recovery_point and not unsynced:
            unsynced.closed = closed
            return None
        # If a segment begins at the recovery point, a cut there changed the segment before it.
        first = segments.index_of(self.recovery_point - unsynced.has_cut)
        to_sync = [s for s in segments[first:] if s.base_offset <= end_offset]
        to_sync += [s for s in unsynced.closed if s not in to_sync]
        disk, directory = segments.disk, segments.directory
        try:
            with storage_errors(self._changes):
                flush = Flush(disk, directory, to_sync, unsynced, end_offset, indexed_end)
        except BaseException:
            unsynced.closed = closed
            raise
        self.running = flush
        self.unsynced = UnsyncedWrites(
            closed=[s for s in closed if s.base_offset >= indexed_end],
            has_new_names=False,
            has_new_directory=False,
        )
        self._changes.clean()
        return flush

    def end(self, flush: Flush) -> None:
        """Account for a flush that has run: the data that it synced counts as durable."""
        flush.close()
        self.running = None
        if not flush.has_succeeded:
            self.unsynced.put_back(flush.unsynced)
            return
        for segment in flush.unsynced.closed:
            segment.drop_indexes()
        self.recovery_point = max(self.recovery_point, flush.end_offset)
        self.indexed_end = max(self.indexed_end, flush.indexed_end)
        self._changes.clean()
        self._changes.on_change()

    def flush(self) -> None:
        """Sync in the calling thread, which must be allowed to wait."""
        flush = self.start()
        if flush is not None:
            with storage_errors(self._changes):
                try:
                    flush.run()
                finally:
                    self.end(flush)

    # -- changes of the log

    def begin_segment(self, base_offset: int, now_ms: int, config: LogConfig) -> Segment:
        """Create an empty segment, whose name the next flush syncs."""
        segment = self._segments.begin(base_offset, now_ms, config)
        self.unsynced.has_new_names = True
        return segment

    def on_segment_closed(self, segment: Segment) -> None:
        """Keep a closed segment's indexes in memory until a flush has synced its records.

        At a start, a segment with an index counts as synced. In a compacted log, a lost end of such
        a segment would then be taken for a gap of compaction; and any topic may become compacted,
        also while the node is down.
        """
        closed = self.unsynced.closed
        closed.append(segment)
        if len(closed) > CLOSED_MAX:
            closed[-1 - CLOSED_MAX].forget_positions()

    def write_indexes(self, segment: Segment) -> None:
        """Write the indexes of a segment whose records are synced; the next flush syncs them.

        If the disk has no room, they stay in memory until the next flush writes them.
        """
        try:
            self.unsynced.files.update(dict.fromkeys(segment.write_indexes()))
        except OSError as error:
            if classify(error) is not DiskErrorKind.NO_ROOM:
                raise
            self.unsynced.closed.append(segment)

    def on_segments_removed(self, segments: Iterable[Segment]) -> None:
        """Drop the unsynced writes of removed segments; a crash could make their names reappear."""
        assert self.running is None, "a flush is running"
        self.unsynced.has_removed = True
        for segment in segments:
            self.unsynced.forget(segment)

    def remove_segments(self, segments: Iterable[Segment]) -> None:
        """Remove segments of a cut, and their files, at once."""
        for segment in segments:
            self.unsynced.forget(segment)
            self._segments.remove(segment)

    def start_cut(self) -> None:
        """Record a cut; no flush may be running, because it would treat removed data as durable."""
        assert self.running is None, "a flush is running"
        self.unsynced.has_cut = True

    def end_cut(self) -> None:
        """Let checkpoints contain the log's actual start again."""
        self.cut_offset = None
        self.ended_cut_count += 1

    def truncate_to(self, offset: int, active: Segment) -> None:
        """Note that the log was cut at ``offset``, and that ``active`` is its last segment now."""
        self.unsynced.forget(active)
        self.indexed_end = min(self.indexed_end, active.base_offset)
        self.recovery_point = min(self.recovery_point, offset)

    # -- a clean shutdown

    def write_all_indexes(self) -> None:
        """Write the indexes of all segments; the next flush syncs them.

        The indexes of an empty segment are not synced; they may be lost.
        """
        segments, unsynced = self._segments, self.unsynced
        if segments.active.has_indexes:
            segments.active.close_indexes()
        for segment in segments:
            file_names = segment.write_indexes()
            if segment.size:
                unsynced.files.update(dict.fromkeys(file_names))
        unsynced.closed.clear()

    def close(self, log_end_offset: int) -> None:
        """Write all pending files as the next flush would; nothing may be appended afterwards."""
        segments = self._segments
        for name, encode in self.unsynced.files.items():
            if encode is not None:
                segments.disk.write(f"{segments.directory}/{name}", encode())
                self.unsynced.files[name] = None
        self._closed_end = log_end_offset
