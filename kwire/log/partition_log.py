"""One partition's log: Produce appends to it and Fetch reads from it.

One directory, one owner, synchronous. Rules: a batch is bytes, which are stamped, written once and
accounted for; no code here reads individual records. State changes only after the corresponding
write, so an error leaves the log unchanged. ``end_offset`` is the next batch's offset; reads and
the high watermark stop at ``writer.written_offset``. The two differ only while a slow directory has
queued writes.

Most batches of clients are appended by :mod:`kwire.replica.usual_append`, which does the same as
:meth:`PartitionLog.append_leader` in fewer steps. Here a batch takes 3 us (4 us from an idempotent
producer), plus 10 us to write 16 KB (benchmarks/log.py).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kwire.errors import (
    KafkaStorageError,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
)
from kwire.log.clean_state import CleanState
from kwire.log.config import DEFAULTS, LogConfig
from kwire.log.disk import Disk
from kwire.log.epochs import LeaderEpochs
from kwire.log.epochs_file import EpochsFile
from kwire.log.error_mapping import storage_error, storage_errors
from kwire.log.fetched_batches import sound_batches
from kwire.log.flush_state import FlushState
from kwire.log.formats import names
from kwire.log.log_changes import LogChanges
from kwire.log.log_segments import LogSegments, following_base
from kwire.log.log_writer import LogWriter
from kwire.log.producer_snapshots import ProducerSnapshots
from kwire.log.producers import Duplicate, ProducerStates
from kwire.log.region import FileRegion
from kwire.log.segments.segment import Segment, SegmentCut
from kwire.records.build import stamp
from kwire.records.header import (
    LENGTH_END,
    NO_PRODUCER,
    BatchHeader,
    Buffer,
)
from kwire.types import ZERO_UUID, TopicPartition

ANY_EPOCH: Final = (1 << 31) - 1
"""Accepts batches of any leader epoch, because the caller (a quorum follower) has checked them."""


class LogAppendInfo(NamedTuple):
    """The offsets and timestamp of an appended batch."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    log_start: int
    is_duplicate: bool = False
    """True if the batch was already in the log, so that nothing was written."""


class Elsewhere(Exception):
    """The records to read are part of the log, but exist only in remote storage."""


def _ignore(log: "PartitionLog") -> None: ...


def remove_files(log: "PartitionLog", segments: Sequence[Segment], paths: list[str]) -> None:
    """Remove the renamed files of segments immediately, in the calling thread."""
    for path in paths:
        log.disk.remove(path)


class PartitionLog:
    """An open log, created by :func:`create` or :mod:`kwire.log.recovery`, not directly."""

    def __init__(
        self, disk: Disk, directory: str, partition: TopicPartition, config: LogConfig = DEFAULTS
    ) -> None:
        self.disk = disk
        self.partition = partition
        self.topic_id = ZERO_UUID
        self.config = config
        self.log_start = 0
        """The offset of the first record that clients may read; records below it are deleted. It is
        checkpointed, and the leader epochs begin there."""
        self.end_offset = 0
        self.high_watermark = 0
        """All in-sync replicas have the records below this offset. It belongs to the log: it is
        stored in the log directory's checkpoint, bounds retention and survives role changes. A
        leader advances it when in-sync replicas fetch, a follower when its leader's response has a
        higher value. It decreases only when the log is truncated below it."""
        self.segments = LogSegments(disk, directory)
        self.copied_end: int | None = None
        """Remote storage has all records from :attr:`log_start` to below this offset; None while
        nothing of the log is remote (KIP-405)."""
        self.changes = LogChanges(partition)
        self.clean_state = CleanState()
        self.writer = LogWriter(disk, partition)
        self.flush_state = FlushState(self.segments, self.writer, self.changes)
        self.epochs = LeaderEpochs()
        self.epochs_file = EpochsFile(self.epochs, self.segments, self.flush_state, self.changes)
        self.producers = ProducerStates()
        self.snapshots = ProducerSnapshots(self.producers, self.segments, self.flush_state)
        self.on_roll: Callable[[PartitionLog], None] = _ignore
        """Called after a segment was closed, so that it is synced soon."""
        self.on_removed: Callable[[PartitionLog, Sequence[Segment], list[str]], None] = remove_files
        """Called with segments that a truncation removed, and the paths of their renamed files."""

    @property
    def local_start(self) -> int:
        """The offset of the first record on this broker's disk; :attr:`log_start` or higher.

        It is above the log start only if remote storage has the records between the two.
        """
        return max(self.log_start, self.segments[0].base_offset)

    # -- appending

    def append_leader(
        self,
        records: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        *,
        from_client: bool = True,
    ) -> LogAppendInfo:
        """Assign offsets to a validated batch and write it.

        With ``from_client``, check the batch's sequence, not only its producer epoch.
        """
        producer_id = header.producer_id
        if producer_id > NO_PRODUCER:
            if from_client:
                duplicate = _check_sequence(self, header)
                if duplicate is not None:
                    return LogAppendInfo(*duplicate, self.log_start, True)
            else:
                self.producers.check_epoch(header)
        if self.disk.full:
            self.writer.need_room()
        base_offset = self.end_offset
        config = self.config
        append_time_ms = now_ms if config.log_append_time else None
        timestamp = header.max_timestamp if append_time_ms is None else append_time_ms
        front = stamp(
            records,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_time_ms=append_time_ms,
        )
        size = header.length + LENGTH_END
        next_offset = base_offset + header.last_offset_delta + 1
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        parts = (front, memoryview(records)[len(front) : size])
        segment = self.segments.active
        try:
            if self.segments.should_roll(size, next_offset - 1, timestamp, now_ms, config):
                segment = self.roll(now_ms, base_offset)
            self.writer.write(segment, parts, size, next_offset, config)
        except OSError as error:
            raise storage_error(self.changes, error) from error
        segment.note(size, next_offset, timestamp, config.index_interval_bytes)
        self.end_offset = next_offset
        if not self.changes.is_marked:
            self.changes.mark()
        if producer_id > NO_PRODUCER:
            aborted = self.producers.append(records, 0, header, base_offset, timestamp)
            if aborted is not None:
                segment.indexes.aborted.add(aborted)
        return LogAppendInfo(base_offset, next_offset - 1, timestamp, self.log_start)

    def append_follower(self, records: Buffer, now_ms: int = 0, epoch: int = ANY_EPOCH) -> None:
        """Append batches fetched in leader epoch ``epoch``, keeping their offsets.

        An incomplete last batch is ignored. Raises CorruptMessage, UnexpectedOffset or
        FencedLeaderEpoch at a damaged or unsuitable batch, after appending the batches before it.
        """
        if self.disk.full:
            self.writer.need_room()
        batches, refusal = sound_batches(records, self.end_offset, self.epochs, epoch)
        run: list[tuple[int, BatchHeader]] = []
        for pos, header in batches:
            size = pos + header.size - (run[0][0] if run else pos)
            if self.segments.should_roll(
                size, header.last_offset, header.max_timestamp, now_ms, self.config
            ):
                _append_run(self, records, run)
                self.roll(now_ms, following_base(self.end_offset, header))
                run = []
            run.append((pos, header))
        _append_run(self, records, run)
        if refusal is not None:
            raise refusal

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and start one at ``base_offset``, by default the log end."""
        base_offset = self.end_offset if base_offset is None else base_offset
        closing = self.segments.active
        if not closing.size and closing.base_offset == base_offset:
            return closing
        with storage_errors(self.changes):
            if closing.size:
                closing.close_indexes()
                closing.indexes.mark_growing()
            active = self.flush_state.begin_segment(base_offset, now_ms, self.config)
            if closing.size:
                closing.modified_ms = now_ms
                self.snapshots.take_at_flush(base_offset)
                self.flush_state.on_segment_closed(closing)
            else:
                self.flush_state.remove_segments([closing])
                if len(self.segments) == 1:  # An empty log starts at its first batch.
                    self.log_start = max(self.log_start, base_offset)
        self.on_roll(self)
        return active

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        at_least_one: bool = True,
        wait: bool = True,
    ) -> FileRegion:
        """Return whole batches below ``end_offset``, from the one that contains ``offset`` onwards.

        With ``at_least_one`` the first batch is returned even if it is larger than ``max_bytes``.
        Without ``wait``, raise :class:`WouldWait` if finding the bytes would wait for the disk.
        Raises :class:`Elsewhere` for an offset from the log start to below the local start.
        """
        if not self.log_start <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"{offset} is not in [{self.log_start}, {self.end_offset}] of {self.partition}"
            )
        if self.copied_end is not None and offset < self.local_start:
            raise Elsewhere(f"{self.partition}: {offset} is below {self.local_start}")
        written_offset = self.writer.written_offset
        return self.segments.read(
            offset, max_bytes, min(end_offset, written_offset), written_offset, at_least_one, wait
        )

    # -- cutting
    def truncate_to(
        self, offset: int, now_ms: int = 0, producers: ProducerStates | None = None
    ) -> bool:
        """Remove everything from ``offset`` onwards; return whether anything was removed.

        The batch that contains ``offset`` is removed as a whole; the log still ends at ``offset``.
        ``producers`` is the producer state at ``offset``, if the caller has already rebuilt it.
        """
        if offset >= self.end_offset:
            self.epochs.truncate_end(offset)  # A leader epoch may have no records.
            return False
        segments = self.segments
        if offset < segments[0].base_offset:
            self.truncate_fully_at(offset, now_ms)
            return True
        self.flush_state.start_cut()
        with storage_errors(self.changes):
            _cut_at(self, offset, producers)
        return True

    def truncate_fully_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and continue at ``offset``."""
        self.flush_state.start_cut()
        with storage_errors(self.changes):
            _empty_at(self, offset, now_ms)
        self.changes.mark()

    def advance_log_start(self, offset: int) -> bool:
        """Advance the log start to ``offset``, if that is higher; return whether it moved.

        Retention removes the segments below the log start later.
        """
        if offset <= self.log_start:
            return False
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"{offset} is past the end {self.end_offset}")
        self.log_start = offset
        self.advance_high_watermark(offset)
        self.epochs.truncate_start(offset)
        self.changes.mark()
        return True

    def advance_high_watermark(self, offset: int) -> int | None:
        """Advance the high watermark to ``offset`` if that is higher, and return its former value.

        Return None if it did not move.
        """
        before = self.high_watermark
        if offset <= before:
            return None
        self.high_watermark = offset
        return before

    def limit_high_watermark(self, end_offset: int) -> None:
        """Lower a high watermark that is above the end of the log."""
        self.high_watermark = min(self.high_watermark, end_offset)

    def drop_segments(self, count: int) -> list[str]:
        """Remove the oldest segments from the disk; return their files, now named ``.deleted``.

        The log start advances with the local start, unless remote storage has copied the records.
        Raises KafkaStorageError if the disk refuses to rename a segment. That segment and those
        after it stay in the log: otherwise its records would disappear, but reappear after a
        restart.
        """
        paths: list[str] = []
        if count and len(self.producers):  # A kill must not lose them with their batches.
            with storage_errors(self.changes):
                self.snapshots.write_now(self.segments[count].base_offset)
        for segment in self.segments[:count]:
            with storage_errors(self.changes):
                paths += _mark_deleted(self, segment)
            self.clean_state.on_removed()
            self.flush_state.on_segments_removed([segment])
            self.segments.take_oldest()
            if self.copied_end is None:
                self.advance_log_start(self.segments[0].base_offset)
        return paths

    # -- making durable

    def configure(self, config: LogConfig) -> None:
        """Apply changed settings."""
        self.config = config
        self.clean_state.on_change()
        if self.flush_state.recovery_point < self.end_offset:
            self.changes.on_change()  # A new "flush.ms" also applies to records already written.

    @property
    def must_flush(self) -> bool:
        """True while an fsync is due: at least ``flush.messages`` messages are unsynced."""
        return self.end_offset - self.flush_state.recovery_point >= self.config.flush_messages

    def on_written(self) -> None:
        """Make the data written by the write queue's last job readable."""
        if self.writer.end_job():  # A flush that began before the cut has not synced the cut.
            self.flush_state.unsynced.has_cut = True
        self.changes.mark()

    def write_queued(self) -> None:
        """Write all queued batches, in the calling thread."""
        with storage_errors(self.changes):
            while self.writer.queue.queue:
                self.writer.run_job()
                self.on_written()

    def finish(self) -> None:
        """Write all files for a clean shutdown, which is valid after the next flush syncs them.

        Nothing may be appended afterwards.
        """
        self.write_queued()
        with storage_errors(self.changes):
            self.flush_state.write_all_indexes()
            if self.end_offset > self.segments[0].base_offset or len(self.segments) > 1:
                self.snapshots.take_at_flush(self.end_offset)
            self.flush_state.close(self.end_offset)

    def close(self) -> None:
        """Write and close all files as in a clean shutdown, but without a sync."""
        self.finish()
        self.segments.release()


def _append_run(log: PartitionLog, records: Buffer, run: list[tuple[int, BatchHeader]]) -> None:
    """Write batches to the active segment in a single call and account for them.

    This includes producer state, because a roll writes a producer snapshot and the index of aborted
    transactions, which must cover every batch before the roll.
    """
    if not run:
        return
    start, (pos, last) = run[0][0], run[-1]
    data = memoryview(records)[start : pos + last.size]
    segment = log.segments.active
    try:
        log.writer.write(segment, (data,), len(data), last.next_offset, log.config)
    except OSError as error:
        raise storage_error(log.changes, error) from error
    interval = log.config.index_interval_bytes
    for _, header in run:
        if header.leader_epoch != log.epochs.latest:
            log.epochs.assign(header.leader_epoch, header.base_offset)
        segment.note(header.size, header.next_offset, header.max_timestamp, interval)
    log.end_offset = last.next_offset
    if not log.changes.is_marked:
        log.changes.mark()
    for pos, header in run:
        if header.producer_id > NO_PRODUCER:
            aborted = log.producers.replay(records, pos, header)
            if aborted is not None:
                segment.indexes.aborted.add(aborted)


def _cut_at(log: PartitionLog, offset: int, producers: ProducerStates | None) -> None:
    """Remove everything from ``offset`` onwards, which is inside the log.

    Steps that need a descriptor come first: without one, nothing is removed.
    """
    end = log.segments.last_below(offset) + 1
    new_last = log.segments[end - 1]
    new_last.file.pin()
    try:
        cut = log.writer.plan_cut(new_last, offset)
        _drop_from(log, end)
        _end_at(log, cut, producers)
    finally:
        new_last.file.unpin()


def _end_at(log: PartitionLog, cut: SegmentCut, producers: ProducerStates | None = None) -> None:
    """Cut the active segment, and update all state that depends on the log end."""
    active, offset = log.segments.active, cut.end_offset
    log.flush_state.truncate_to(offset, active)
    log.clean_state.on_removed(active.base_offset)
    log.writer.cut(active, cut)
    log.end_offset = offset
    log.log_start = min(log.log_start, offset)
    log.limit_high_watermark(offset)
    log.epochs.truncate_end(offset)
    log.snapshots.remove_after(offset)
    if producers is not None:
        log.producers.replace(producers)
    elif len(log.producers):
        log.snapshots.replay(offset)
    log.changes.mark()


def _empty_at(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Remove all records; the log continues at ``offset``.

    The oldest segments go first, as in retention. So the log is valid after each step, and none of
    them needs a descriptor that the next one could lack.
    """
    while len(log.segments) > 1:
        oldest = log.segments[0]
        log.on_removed(log, [oldest], log.drop_segments(1))
    last = log.segments[0]
    paths = _mark_deleted(log, last)
    try:
        log.flush_state.begin_segment(offset, now_ms, log.config)
    except OSError:  # Appends would go to a file that the next start removes.
        last.files.unmark(paths)
        last.move(log.segments.directory)
        raise
    log.clean_state.on_removed(offset)
    log.writer.continue_at(offset)
    log.snapshots.remove_after(-1)
    log.segments.take_oldest()
    log.on_removed(log, [last], paths)
    log.log_start = log.end_offset = offset
    log.flush_state.recovery_point = log.flush_state.indexed_end = offset
    log.high_watermark = offset
    log.epochs.clear()
    log.producers.clear()


def _drop_from(log: PartitionLog, index: int) -> None:
    """Remove the segments from ``index`` onwards, the last one first.

    This order leaves the log without a gap after a crash. If the disk refuses to rename a segment,
    raise OSError; the log then ends after that segment.
    """
    segments, removed, paths = log.segments, list[Segment](), list[str]()
    try:
        for segment in reversed(segments[index:]):
            paths += _mark_deleted(log, segment)
            removed += segments.take_from(len(segments) - 1)
    except OSError:
        if removed:
            _end_at(log, log.writer.plan_cut(segments.active, removed[-1].base_offset))
        raise
    finally:
        if removed:
            log.on_removed(log, removed, paths)


def _mark_deleted(log: PartitionLog, segment: Segment) -> list[str]:
    """Rename the files of a segment that is removed from the log; return their new paths.

    The log file decides: if it cannot be renamed, raise OSError and leave the segment unchanged.
    Other files may keep their names, because a start removes them if the log file is missing.
    """
    suffixes = (*names.SEGMENT_SUFFIXES, names.SNAPSHOT)
    paths = segment.mark_deleted(suffixes, may_leave=True)
    log.flush_state.unsynced.forget(segment)
    log.snapshots.forget(segment.base_offset)
    if log.disk.failed is not None:
        log.changes.on_change()
    return paths


def _check_sequence(log: PartitionLog, header: BatchHeader) -> Duplicate | None:
    """Return the offsets of a duplicate; reject a batch that follows one rejected by a full disk.

    The later batch gets the same storage error even if there is room now, because
    OUT_OF_ORDER_SEQUENCE_NUMBER would make librdkafka start a new epoch and store records of
    other partitions twice if they were not acknowledged yet.
    """
    producers, producer_id = log.producers, header.producer_id
    if log.disk.full and not log.disk.has_room():
        producers.note_refused(producer_id)
    try:
        return producers.check(header)
    except OutOfOrderSequenceNumber:
        if producers.count_behind_refused(producer_id):
            raise KafkaStorageError(f"{log.partition}: no room for the previous batch") from None
        raise


def create(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    *,
    now_ms: int,
    config: LogConfig = DEFAULTS,
    base_offset: int = 0,
) -> PartitionLog:
    """Create an empty log that begins at ``base_offset``, in an existing directory."""
    log = PartitionLog(disk, directory, partition, config)
    log.log_start = log.end_offset = log.high_watermark = base_offset
    log.writer.written_offset = log.flush_state.recovery_point = base_offset
    log.flush_state.begin_segment(base_offset, now_ms, config)
    return log
