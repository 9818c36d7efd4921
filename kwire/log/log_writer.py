"""The writes of a log's batches: directly, or through a queue while the directory is slow.

Rules: batches are written in the order of their offsets. An error leaves the log unchanged. Disk
errors are raised unchanged; a full disk raises KafkaStorageError before anything is written, unless
the log may use the directory's reserve.
"""

from collections.abc import Callable

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.segments.segment import Segment, SegmentCut, plan_cut
from kwire.log.write_queue import Write, WriteQueue
from kwire.records.header import Buffer
from kwire.types import TopicPartition


class LogWriter:
    """Writes batches to the segments of one log."""

    __slots__ = ("disk", "on_queued", "partition", "queue", "uses_reserve", "written_offset")

    def __init__(self, disk: Disk, partition: TopicPartition) -> None:
        self.disk = disk
        self.partition = partition
        self.queue = WriteQueue()
        self.written_offset = 0
        """The end offset of the batches in the page cache; readers stay below it."""
        self.uses_reserve = False
        """True if records are appended even on a full disk, as for the metadata log."""
        self.on_queued: Callable[[], None] | None = None
        """Called when a write or cut was queued; the service then runs the jobs of the queue.

        If it is None, the log writes synchronously, even to a slow disk.
        """

    def write(
        self,
        segment: Segment,
        parts: tuple[Buffer, ...],
        size: int,
        next_offset: int,
        config: LogConfig,
    ) -> None:
        """Write batches of ``size`` bytes at the end of the active segment, or queue them."""
        disk = self.disk
        if disk.full:  # A roll may just have found that the disk is full.
            self.need_room()
        if segment.indexes.has_surplus:
            segment.indexes.spill()
        position = segment.size
        end_position = position + size
        if end_position > segment.space.end:
            segment.space.extend(segment.file, position, size, config)
        on_queued = self.on_queued
        if self.queue or (disk.slow and on_queued is not None):
            segment.limits = None  # Later batches must not overtake this one.
            self.queue.add(Write(segment, position, parts, end_position, next_offset))
            if on_queued is not None:
                on_queued()
            return
        segment.write(parts, self.uses_reserve)
        segment.written = end_position
        self.written_offset = next_offset

    def need_room(self) -> None:
        """Raise KafkaStorageError if the disk was full and still has no room."""
        if not self.has_room():
            raise KafkaStorageError(f"{self.partition}: no room for records")

    def has_room(self) -> bool:
        """Return whether records may be written; a full disk is checked for room again."""
        return self.uses_reserve or self.disk.has_room()

    def run_job(self) -> None:
        """Run the queue's next job in the calling thread; then call :meth:`end_job`."""
        job = self.queue.take()
        try:
            job.run()
        except OSError:
            self.queue.put_back()
            raise

    def end_job(self) -> bool:
        """Make the writes of the finished job readable; return whether it also cut a file."""
        has_cut = False
        for operation in self.queue.finish():
            if isinstance(operation, Write):
                operation.segment.written = operation.end_position
                self.written_offset = operation.next_offset
            else:
                has_cut = True
        return has_cut

    def plan_cut(self, segment: Segment, offset: int) -> SegmentCut:
        """Plan to cut ``segment`` at the start of the batch that contains ``offset``."""
        position = self.queue.locate(segment, offset)
        if position is None:
            batch = segment.locate(offset)
            position = segment.size if batch is None else batch[0]
        return plan_cut(segment, position, offset)

    def cut(self, segment: Segment, cut: SegmentCut) -> None:
        """Cut ``segment``, now the last one, or queue the cut behind queued writes.

        The file is cut first, so that nothing has changed if that fails.
        """
        if not self.queue:
            segment.file.truncate(cut.position)
        segment.cut(cut)
        if self.queue:
            self.queue.truncate(segment, cut.position, cut.end_offset)
            if self.on_queued is not None:
                self.on_queued()
        self.written_offset = min(self.written_offset, cut.end_offset)

    def continue_at(self, offset: int) -> None:
        """Drop all queued writes, because the log was emptied, and continue at ``offset``."""
        self.queue.forget(offset)
        self.written_offset = offset
