"""One partition's log: Produce appends to it and Fetch reads from it.

One directory, one owner, synchronous. Rules: a batch is bytes that are stamped, written once and
accounted for; no code here reads a record. State changes only after the write that it describes,
so an error leaves the log as it was. ``end_offset`` is the next batch's offset; readers and high
watermarks stay below ``written_offset``. The two differ only while a slow directory writes behind.

The hot path is :meth:`PartitionLog.append_leader`: 3 us for a batch beside the write itself, 4 us
from an idempotent producer; the write of 16 KB takes another 10 (benchmarks/log.py). Its shape
(flat, few calls) is due to that.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from kwire.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange
from kwire.log import epochs_file, region, snapshots, timestamp_search
from kwire.log.cold import WouldWait
from kwire.log.config import DEFAULTS, LogConfig
from kwire.log.disk import Disk
from kwire.log.epochs import LeaderEpochs
from kwire.log.flush import Flush, Unsynced
from kwire.log.formats import names
from kwire.log.formats.txn_index import Aborted, overlapping
from kwire.log.producers import Duplicate, ProducerStates, marker_of
from kwire.log.region import FileRegion
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment
from kwire.log.storage_errors import storage_error, storage_errors
from kwire.log.trouble import Trouble, trouble
from kwire.log.write_queue import Write, WriteQueue
from kwire.records.build import stamp
from kwire.records.header import CONTROL, LENGTH_END, BatchHeader, Buffer, crc_ok, headers
from kwire.types import ZERO_UUID, TopicPartition

NO_PRODUCER: Final = -1
CLOSED_MAX: Final = 8
"""Closed segments that keep their indexes in memory until a flush writes them."""


class Appended(NamedTuple):
    """The place of a batch in the log. ``duplicate``: it was there before, nothing was written."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    start_offset: int
    duplicate: bool = False


class UnexpectedOffset(ValueError):
    """A batch for a follower does not continue its log."""


def _write_now(log: "PartitionLog") -> None:
    """Do nothing: a log without a service writes synchronously, even to a slow disk."""


class PartitionLog:
    """An open log, made by :func:`create` or :mod:`kwire.log.recovery`, not directly."""

    def __init__(
        self, disk: Disk, directory: str, partition: TopicPartition, config: LogConfig = DEFAULTS
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.partition = partition
        self.topic_id = ZERO_UUID
        self.config = config
        self.segments: list[Segment] = []
        self.active: Segment
        self.start_offset = 0
        self.end_offset = 0
        self.written_offset = 0
        self.recovery_point = 0
        """Everything below this offset is synced."""
        self.high_watermark = 0
        """Set by the replica layer; kept here for retention, checkpoints and restarts."""
        self.uses_reserve = False
        """Whether records are appended even on a full disk, as to the metadata log."""
        self.epochs = LeaderEpochs(self.write_epochs)
        self.producers = ProducerStates()
        self.snapshots: list[int] = []
        """Offsets of the producer snapshots on disk."""
        self.behind = WriteQueue()
        self.on_behind: Callable[[PartitionLog], None] = _write_now
        """Called when a write was queued; the service then runs the jobs of :attr:`behind`."""
        self.changed: Callable[[PartitionLog], None] = _write_now
        """Called for the first change since :meth:`clean`, for the first append after the start of
        a flush, for changed settings of unsynced records, and after a failure (``disk.failed``)."""
        self.on_roll: Callable[[PartitionLog], None] = _write_now
        """Called when a segment was closed, so that it is synced soon."""
        self.unsynced = Unsynced()
        self.indexed_end = 0
        """The segments below this offset have their indexes on disk, synced."""
        self._flush: Flush | None = None
        """The running flush."""
        self._finished = False
        self._dirty = False

    # -- appending

    def append_leader(
        self,
        records: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        *,
        from_client: bool = True,
    ) -> Appended:
        """Assign offsets to a validated batch and write it.

        ``from_client``: the producer's sequence is checked; a coordinator's is not.
        """
        producer_id = header.producer_id
        if producer_id > NO_PRODUCER:
            duplicate = self._check_producer(header, from_client)
            if duplicate is not None:
                return Appended(*duplicate, self.start_offset, True)
        if self.disk.full:
            self._need_room()
        base_offset = self.end_offset
        timestamp = header.max_timestamp
        if self.config.log_append_time:
            timestamp = now_ms
            front = stamp(
                records, base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
        else:
            front = stamp(records, base_offset=base_offset, leader_epoch=leader_epoch)
        size = header.length + LENGTH_END
        next_offset = base_offset + header.last_offset_delta + 1
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        parts = (front, memoryview(records)[len(front) : size])
        self._place(size, base_offset, next_offset - 1, timestamp, now_ms)
        self._write(parts, size, next_offset)
        self.active.note(size, next_offset, timestamp, self.config.index_interval_bytes)
        self._advance(next_offset)
        if producer_id > NO_PRODUCER:
            self._note_producer(records, header, base_offset, timestamp)
        return Appended(base_offset, next_offset - 1, timestamp, self.start_offset)

    def append_follower(self, records: Buffer, now_ms: int = 0) -> Appended:
        """Append batches with the offsets of another log (or of the quorum's leader).

        Whole batches only; a cut-off last one is left out. Raises :class:`UnexpectedOffset` when
        they overlap the log, CorruptMessage when they are damaged.
        """
        if self.disk.full:
            self._need_room()
        batches = list(headers(records))
        self._check_batches(records, batches)
        first, timestamp, run_start = self.end_offset, -1, 0
        run: list[tuple[int, BatchHeader]] = []
        for pos, header in batches:
            if not self._fits(pos - run_start + header.size, header, now_ms):
                self._append_run(records, run)
                self.roll(now_ms, header.base_offset)
                run_start, run = pos, []
            run.append((pos, header))
            timestamp = max(timestamp, header.max_timestamp)
        self._append_run(records, run)
        if batches:
            first = batches[0][1].base_offset
        return Appended(first, self.end_offset - 1, timestamp, self.start_offset)

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin one at ``base_offset``, by default the log end."""
        base_offset = self.end_offset if base_offset is None else base_offset
        closing = self.active
        if not closing.size and closing.base_offset == base_offset:
            return closing
        with storage_errors(self):
            if closing.size:
                closing.close_indexes()
            begun = self._begin(base_offset, now_ms)
            if closing.size:
                closing.modified_ms = now_ms
                self._leave_to_flush(closing, base_offset)
            else:
                self.remove_segments([closing])
                if len(self.segments) == 1:  # An empty log begins at its first batch.
                    self.start_offset = max(self.start_offset, base_offset)
        self.on_roll(self)
        return begun

    def _leave_to_flush(self, closing: Segment, end_offset: int) -> None:
        """Let the next flush write a closed segment's indexes and the snapshot at its end.

        The flush's thread can wait for the file system; an append should not.
        """
        self.unsynced.closed.append(closing)
        snapshots.add(self, end_offset)
        if len(self.unsynced.closed) > CLOSED_MAX:
            self.write_indexes(self.unsynced.closed.pop(0))

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
        """Return the bytes from the batch that holds ``offset``, wholly below ``end_offset``.

        ``at_least_one``: the first batch is returned even if it is larger than ``max_bytes``.
        Without ``wait`` it raises :class:`WouldWait` if finding the bytes would wait for the disk.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"{offset} is not in [{self.start_offset}, {self.end_offset}] of {self.partition}"
            )
        end_offset = min(end_offset, self.written_offset)
        index = self.segment_index(offset)
        while offset < end_offset and index < len(self.segments):
            segment = self.segments[index]
            try:
                found = segment.locate(offset, wait=wait)
                if found is not None:
                    end = self._end_position(index, end_offset, wait=wait)
                    return region.of_segment(segment, found, max_bytes, end, at_least_one)
            except WouldWait as cold:
                cold.disk, cold.job = self.disk, warming.lookups(segment, offset, end_offset)
                raise
            index += 1  # Compaction removed the rest of this segment.
        return region.empty()

    def aborted(self, start_offset: int, end_offset: int) -> list[Aborted]:
        """Return aborted transactions that touch the range, sorted by their first offsets."""
        found: list[Aborted] = []
        for segment in self.segments[self.segment_index(start_offset) :]:
            for entry in segment.indexes.aborted_transactions():
                found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return overlapping(found, start_offset, end_offset)
        return overlapping(found, start_offset, end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: below it every transaction has ended."""
        unstable = self.producers.first_unstable(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    # -- cutting

    def truncate_to(self, offset: int, now_ms: int = 0) -> bool:
        """Remove everything from ``offset`` on; return whether there was anything.

        The batch that holds ``offset`` is removed as a whole; the log still ends at ``offset``.
        """
        if offset >= self.end_offset:
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully_at(offset, now_ms)
            return True
        self._begin_cut()
        with storage_errors(self):
            keep = self.segment_index(offset) + 1
            removed, self.segments = self.segments[keep:], self.segments[:keep]
            self.active = self.segments[-1]
            self.unsynced.forget(self.active)
            self.indexed_end = min(self.indexed_end, self.active.base_offset)
            self._cut(self.active, offset)
            self.remove_segments(removed)
            self.end_offset = offset
            self.written_offset = min(self.written_offset, offset)
            self._clamp()
            self.epochs.truncate_end(offset)
            self._reload_producers()
        self._mark_dirty()
        return True

    def truncate_fully_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and continue at ``offset``."""
        self._begin_cut()
        with storage_errors(self):
            self.behind.forget(offset)
            removed, self.segments = self.segments, []
            self.remove_segments(removed)
            for snapshot in list(self.snapshots):
                snapshots.remove(self, snapshot)
            self.start_offset = self.end_offset = self.written_offset = offset
            self._begin(offset, now_ms)
            self.recovery_point = self.high_watermark = self.indexed_end = offset
            self.epochs.clear()
            self.producers.clear()
        self._mark_dirty()

    def advance_start(self, offset: int) -> bool:
        """Move the log start to ``offset``, if that is higher; return whether it moved.

        Retention removes the segments below it.
        """
        if offset <= self.start_offset:
            return False
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"{offset} is past the end {self.end_offset}")
        self.start_offset = offset
        self.epochs.truncate_start(offset)
        self._clamp()
        self._mark_dirty()
        return True

    def drop_segments(self, count: int) -> list[str]:
        """Take the oldest segments out; return their files, now named ``.deleted``.

        Do not call it while a flush runs: the flush may be writing their indexes.
        """
        assert self._flush is None, "a flush is running"
        self.unsynced.removed = True
        removed, self.segments = self.segments[:count], self.segments[count:]
        self.advance_start(self.segments[0].base_offset)
        with storage_errors(self):
            return [path for segment in removed for path in self._mark_deleted(segment)]

    # -- making durable

    def configure(self, config: LogConfig) -> None:
        """Apply changed settings."""
        self.config = config
        if self.recovery_point < self.end_offset:
            self.changed(self)  # "flush.ms" applies to the records already there as well.

    @property
    def must_flush(self) -> bool:
        """Whether at least ``flush.messages`` messages are unsynced, so that an fsync is due."""
        return self.end_offset - self.recovery_point >= self.config.flush_messages

    def unwritten(self, name: str) -> bytes | None:
        """Return the content that a flush has yet to write to this file of the directory."""
        running = {} if self._flush is None else self._flush.unsynced.files
        return self.unsynced.files.get(name) or running.get(name)

    @property
    def removal_unsynced(self) -> bool:
        """Whether removed segments can reappear after a power loss."""
        running = self._flush
        return self.unsynced.removed or (running is not None and running.unsynced.removed)

    @property
    def name_unsynced(self) -> bool:
        """Whether a power loss can remove the log's own directory."""
        running = self._flush
        return self.unsynced.directory or (running is not None and running.unsynced.directory)

    @property
    def stored_recovery_point(self) -> int:
        """The recovery point for the checkpoint: segments that end below it have their indexes.

        Recovery trusts the indexes of such segments, and reads the others again.
        """
        index = self.segment_index(self.indexed_end)
        following = self.segments[index + 1 : index + 2]
        end_offset = following[0].base_offset if following else self.end_offset
        return min(self.recovery_point, max(self.indexed_end, end_offset - 1))

    def start_flush(self, end_offset: int | None = None) -> Flush | None:
        """Return a flush of everything written (below ``end_offset``), None if nothing is due.

        Run it in any thread, then pass it to :meth:`end_flush`. Raises KafkaStorageError when the
        files cannot be opened for it.
        """
        assert self._flush is None, "a flush is running"
        written = self.written_offset
        end_offset = written if end_offset is None else min(end_offset, written)
        # The flush takes over what a cut left unsynced: it has to sync the segment that was cut.
        end_offset = max(end_offset, self.recovery_point)
        unsynced = self.unsynced
        if end_offset <= self.recovery_point and not unsynced:
            return None
        # If a segment begins at the recovery point, a cut there was made in the segment before.
        first = self.segment_index(self.recovery_point - unsynced.cut)
        chosen = [s for s in self.segments[first:] if s.base_offset <= end_offset]
        chosen += [s for s in unsynced.closed if s not in chosen]
        indexed_end = self.end_offset if self._finished else self.active.base_offset
        with storage_errors(self):
            flush = Flush(self.disk, self.directory, chosen, unsynced, end_offset, indexed_end)
        self._flush = flush
        self.unsynced = Unsynced(names=False, directory=False)
        self._dirty = False
        return flush

    def end_flush(self, flush: Flush) -> None:
        """Account for a flush that has been run: the data it synced counts as durable."""
        flush.close()
        self._flush = None
        if not flush.worked:
            self.unsynced.put_back(flush.unsynced)
            return
        for segment in flush.unsynced.closed:
            segment.drop_indexes()
        self.recovery_point = max(self.recovery_point, flush.end_offset)
        self.indexed_end = max(self.indexed_end, flush.indexed_end)
        self._dirty = False
        self.changed(self)

    def flush(self) -> None:
        """Sync in the calling thread, which must be one that may wait."""
        flush = self.start_flush()
        if flush is not None:
            with storage_errors(self):
                try:
                    flush.run()
                finally:
                    self.end_flush(flush)

    def written(self) -> None:
        """Make the writes of the finished job of :attr:`behind` readable."""
        for operation in self.behind.finish():
            if isinstance(operation, Write):
                operation.segment.written = operation.end_position
                self.written_offset = operation.next_offset
            else:  # A flush that began before the cut has not synced it.
                self.unsynced.cut = True
        self._mark_dirty()

    def settle(self) -> None:
        """Write everything that is queued, in the calling thread."""
        with storage_errors(self):
            while self.behind.queue:
                job = self.behind.take()
                try:
                    job.run()
                except OSError:
                    self.behind.put_back()
                    raise
                self.written()

    def finish(self) -> None:
        """Write all files for a clean stop, which is valid once the next flush has synced them.

        Nothing is appended afterwards. The indexes of an empty segment may be lost.
        """
        self.settle()
        with storage_errors(self):
            if self.active.has_indexes:
                self.active.close_indexes()
            for segment in self.segments:
                written = segment.write_indexes()
                if segment.size:
                    self.unsynced.files.update(dict.fromkeys(written))
            self.unsynced.closed.clear()
            if self.end_offset > self.segments[0].base_offset or len(self.segments) > 1:
                snapshots.add(self, self.end_offset)
            for name, data in self.unsynced.files.items():
                if data is not None:
                    self.disk.write(f"{self.directory}/{name}", data)
                    self.unsynced.files[name] = None
        self._finished = True

    def close(self) -> None:
        """Write and close all files as at a clean stop, but without a sync."""
        self.finish()
        self.release()

    def release(self) -> None:
        """Close the segment files without writing anything."""
        for segment in self.segments:
            segment.file.close()

    def move(self, directory: str) -> None:
        """Follow a rename of the directory."""
        self.directory = directory
        for segment in self.segments:
            segment.move(directory)

    def clean(self) -> None:
        """Prepare for the checkpoints to be written: the next change calls :attr:`changed`."""
        self._dirty = False

    # -- inside

    def _check_producer(self, header: BatchHeader, from_client: bool) -> Duplicate | None:
        if from_client:
            return self.producers.check(header)
        if header.attributes & CONTROL:
            self.producers.check_epoch(header)
        return None

    def _check_batches(self, records: Buffer, batches: list[tuple[int, BatchHeader]]) -> None:
        end_offset = self.end_offset
        for pos, header in batches:
            if header.base_offset < end_offset:
                raise UnexpectedOffset(f"{self.partition}: {header.base_offset} < {end_offset}")
            if not crc_ok(records, pos, header):
                raise CorruptMessage(f"{self.partition}: wrong CRC at {header.base_offset}")
            end_offset = header.next_offset

    def _fits(self, size: int, header: BatchHeader, now_ms: int) -> bool:
        last_offset, timestamp = header.last_offset, header.max_timestamp
        return not self.active.should_roll(size, last_offset, timestamp, now_ms, self.config)

    def _place(
        self, size: int, base_offset: int, last_offset: int, timestamp: int, now_ms: int
    ) -> None:
        """Roll the active segment if this batch does not belong into it."""
        try:
            full = self.active.should_roll(size, last_offset, timestamp, now_ms, self.config)
        except OSError as error:
            raise storage_error(self, error) from error
        if full:
            self.roll(now_ms, base_offset)

    def _write(self, parts: tuple[Buffer, ...], size: int, next_offset: int) -> None:
        segment = self.active
        position = segment.size
        if self.disk.full:  # A roll may have just found the disk full.
            self._need_room()
        try:
            if position + size > segment.space.end:
                segment.space.extend(segment.file, position, size, self.config)
            if self.behind or (self.disk.slow and self.on_behind is not _write_now):
                self.behind.add(Write(segment, position, parts, position + size, next_offset))
                self.on_behind(self)
                return
            segment.write(parts, self.uses_reserve)
        except OSError as error:
            raise storage_error(self, error) from error
        segment.written = position + size
        self.written_offset = next_offset

    def _need_room(self) -> None:
        """Raise KafkaStorageError on a full disk, unless there is room again."""
        if not self.uses_reserve and not self.disk.has_room():
            raise KafkaStorageError(f"{self.partition}: no room for records")

    def _advance(self, next_offset: int) -> None:
        self.end_offset = next_offset
        if not self._dirty:
            self._mark_dirty()

    def _append_run(self, records: Buffer, run: list[tuple[int, BatchHeader]]) -> None:
        """Write batches of one segment in one call and account for them.

        This includes their producers: the snapshot and the index of aborted transactions that are
        written when the segment is closed must cover every batch before the roll.
        """
        if not run:
            return
        start, (pos, last) = run[0][0], run[-1]
        data = memoryview(records)[start : pos + last.size]
        self._write((data,), len(data), last.next_offset)
        interval = self.config.index_interval_bytes
        for _, header in run:
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            self.active.note(header.size, header.next_offset, header.max_timestamp, interval)
        self._advance(last.next_offset)
        for pos, header in run:
            if header.producer_id > NO_PRODUCER:
                self._note_aborted(self.producers.replay(records, pos, header))

    def _note_producer(
        self, records: Buffer, header: BatchHeader, base_offset: int, timestamp: int
    ) -> None:
        if not header.attributes & CONTROL:
            self.producers.update(header, base_offset, timestamp)
            return
        marker = marker_of(records, 0, header)
        if marker is not None:
            aborted = self.producers.update(header, base_offset, timestamp, marker)
            self._note_aborted(aborted)

    def _note_aborted(self, aborted: Aborted | None) -> None:
        """Add an aborted transaction to the active segment, which holds its marker."""
        if aborted is not None:
            self.active.indexes.add_aborted(aborted)

    def _begin(self, base_offset: int, now_ms: int) -> Segment:
        segment = Segment(self.disk, self.directory, base_offset, 0, self.config)
        segment.create(now_ms)
        if self.config.preallocate:
            segment.space.extend(segment.file, 0, 0, self.config)
        self.segments.append(segment)
        self.active = segment
        self.unsynced.names = True
        return segment

    def segment_index(self, offset: int) -> int:
        if offset >= self.active.base_offset:
            return len(self.segments) - 1
        found = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return max(found - 1, 0)

    def _end_position(self, index: int, end_offset: int, *, wait: bool) -> int:
        """Return the end position of this segment's batches below ``end_offset``."""
        segment = self.segments[index]
        if end_offset == self.written_offset or (
            segment is not self.active and self.segments[index + 1].base_offset <= end_offset
        ):
            return segment.written
        past = segment.locate(end_offset, wait=wait)
        return segment.written if past is None else min(segment.written, past[0])

    def _cut(self, segment: Segment, offset: int) -> None:
        position = self.behind.locate(segment, offset)
        if position is None:
            found = segment.locate(offset)
            position = segment.size if found is None else found[0]
        segment.truncate(position, offset)
        if self.behind:
            self.behind.truncate(segment, position, offset)
            self.on_behind(self)
        else:
            segment.file.truncate(position)

    def _begin_cut(self) -> None:
        """Note a cut. No flush may run: it would count removed data as durable and index it."""
        assert self._flush is None, "a flush is running"
        self.unsynced.cut = True

    def _clamp(self) -> None:
        """Move start offset, recovery point and high watermark into the log's bounds."""
        self.start_offset = min(self.start_offset, self.end_offset)
        self.recovery_point = min(self.recovery_point, self.end_offset)
        self.high_watermark = min(max(self.high_watermark, self.start_offset), self.end_offset)

    def _mark_dirty(self) -> None:
        self._dirty = True
        self.changed(self)

    def write_epochs(self) -> None:
        """Write ``leader-epoch-checkpoint``."""
        with storage_errors(self):
            epochs_file.write(self)

    def write_indexes(self, segment: Segment) -> None:
        """Write a closed segment's indexes at once; the next flush syncs them.

        Without room on the disk they stay in memory, and the next flush writes them.
        """
        try:
            self.unsynced.files.update(dict.fromkeys(segment.write_indexes()))
        except OSError as error:
            if trouble(error) is not Trouble.NO_ROOM:
                raise
            self.unsynced.closed.append(segment)

    def remove_segments(self, segments: list[Segment]) -> None:
        for segment in segments:
            self.unsynced.forget(segment)
            segment.file.close()
            segment.files.remove(*names.SEGMENT_SUFFIXES)
            if segment in self.segments:
                self.segments.remove(segment)

    def _mark_deleted(self, segment: Segment) -> list[str]:
        self.unsynced.forget(segment)
        if segment.base_offset in self.snapshots:
            self.snapshots.remove(segment.base_offset)
            self.unsynced.files.pop(segment.files.name(names.SNAPSHOT), None)
        return segment.mark_deleted((*names.SEGMENT_SUFFIXES, names.SNAPSHOT))

    def _reload_producers(self) -> None:
        for snapshot in [s for s in self.snapshots if s > self.end_offset]:
            snapshots.remove(self, snapshot)
        if len(self.producers):
            timestamp_search.replay_producers(self, self.end_offset)


def create(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    *,
    now_ms: int,
    config: LogConfig = DEFAULTS,
    start_offset: int = 0,
) -> PartitionLog:
    """Create an empty log in an existing directory."""
    log = PartitionLog(disk, directory, partition, config)
    log.start_offset = log.end_offset = log.written_offset = start_offset
    log.recovery_point = log.high_watermark = start_offset
    log._begin(start_offset, now_ms)
    return log
