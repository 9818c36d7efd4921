"""The scrub of one directory's logs, and the repair of the damage that it found.

Rules: a scrub only reads: closed segments below the recovery point, one at a time. It gives way to
everything that cuts, removes, moves or compacts the log, and is repeated afterwards. Its result is
used only if nothing was removed from the log meanwhile. A repair overwrites damaged bytes in place,
with bytes that the caller has verified; so positions and indexes stay valid, and a crash leaves at
worst the damage that was there before. The log is claimed meanwhile.
Wrong index files are rebuilt by :mod:`kwire.log.directories.index_repair`.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.index_repair import IndexRepair
from kwire.log.directories.segment_checker import SegmentChecker
from kwire.log.directories.worker_process import WorkerEnded
from kwire.log.disk import Disk, File
from kwire.log.error_mapping import storage_error
from kwire.log.partition_log import PartitionLog
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.segments.damage import Damage, DamagedRange
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread
from kwire.records.header import Buffer

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""The number of times that a pass tries to check a segment before it gives up on the log."""
RETRY_SECONDS: Final = 1.0


OnDamaged = Callable[[PartitionLog, Sequence[DamagedRange]], None]
"""A function that is called with a log and the damage of one of its segments."""


def _ignore(log: PartitionLog, ranges: Sequence[DamagedRange]) -> None: ...


@attrs.define(eq=False, repr=False)
class LogScrub:
    """Scrubs the logs of one directory."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    busy: BusyLogs
    random_below: Callable[[int], int]
    bytes_per_second: float
    indexes: IndexRepair = attrs.field(init=False)
    on_damaged: OnDamaged = attrs.field(init=False, default=_ignore)
    """Called after a check that found damage, also if the damage was known."""
    byte_count: int = attrs.field(init=False, default=0)
    """The number of bytes checked since the start."""
    restored_count: int = attrs.field(init=False, default=0)
    """The number of damaged ranges that were restored."""
    last_pass_ms: int = attrs.field(init=False, default=-1)
    """The wall-clock time at the end of the last pass; -1 before the first."""
    _ended_count: int = attrs.field(init=False, default=0)
    """The number of times that the worker has ended in this pass."""
    _damaged: dict[PartitionLog, dict[Segment, None]] = attrs.field(init=False, factory=dict)
    """The segments in which damage was found, by log."""

    def __attrs_post_init__(self) -> None:
        self.indexes = IndexRepair(self.directory, self.in_thread)

    # -- a pass

    async def run_pass(self, checker: SegmentChecker) -> None:
        """Check every closed segment of the directory once.

        The pass begins at a random log, so that frequent restarts do not always check the same
        logs. A log that is busy is checked at the end of the pass. If the worker ends repeatedly,
        the pass ends too.
        """
        self._ended_count = 0
        logs = list(self.directory.logs.values())
        first = self.random_below(len(logs)) if logs else 0
        postponed = list[PartitionLog]()
        for log in logs[first:] + logs[:first]:
            if self._ended_count < ATTEMPTS and not await self._scrub(log, checker):
                postponed.append(log)
            await trio.lowlevel.checkpoint()
        for log in postponed:
            await self._scrub(log, checker)
        if self.directory.online and self._ended_count < ATTEMPTS:
            self.last_pass_ms = self.clock.now_ms()

    async def _scrub(self, log: PartitionLog, checker: SegmentChecker) -> bool:
        """Check a log's closed segments; return False if the log was busy for too long."""
        after, slices = -1, Slices(self.clock.now)
        while self.directory.online and self.directory.holds(log):
            segment = _next_closed(log, after)
            if segment is None:
                break
            try:
                if not await self._check(log, segment, checker):
                    return False
            except WorkerEnded as error:
                logger.error("scrub process ended partition=%s error=%s", log.partition, error)
                self._ended_count += 1
                return True
            except OSError as error:
                self._on_disk_error(log, segment, error)
            after = segment.base_offset
            await slices.pause()
        return True

    async def _check(self, log: PartitionLog, segment: Segment, checker: SegmentChecker) -> bool:
        """Check one segment, again if the check was aborted; return False if the log is busy."""
        states = self.busy.cleaning
        for _ in range(ATTEMPTS):
            if states.may_scrub(log):
                report: SegmentReport | None = None
                removal_count = log.clean_state.removal_count
                scope = trio.CancelScope()
                with states.scrubbing(log, scope.cancel), scope:
                    job = _job(log, segment, self.bytes_per_second)
                    report = await checker.check(log.disk, self.directory.name, job)
                if report is not None and not scope.cancel_called:
                    if self._is_unchanged(log, segment, removal_count, report):
                        self._note(log, segment, report)
                        await self.indexes.repair(log, segment, report.wrong)
                    return True
            await trio.sleep(RETRY_SECONDS)
            if not self.directory.holds(log) or segment not in _closed_at(log, segment):
                return True
        return False

    def _is_unchanged(
        self, log: PartitionLog, segment: Segment, removal_count: int, report: SegmentReport
    ) -> bool:
        """Return whether a segment has not changed since the check, so that its report is valid."""
        return (
            self.directory.holds(log)
            and log.clean_state.removal_count == removal_count
            and segment in _closed_at(log, segment)
            and segment.size == report.size
        )

    def _note(self, log: PartitionLog, segment: Segment, report: SegmentReport) -> None:
        """Remember the damage of a segment, so that no read returns it."""
        self.byte_count += report.size
        old_ranges = {(each.position, each.end_position): each for each in segment.damage}
        for new in report.damage:
            if (new.position, new.end_position) not in old_ranges:
                _report(self.directory, segment, new)
        segment.damage = Damage(
            old_ranges.get((new.position, new.end_position), new) for new in report.damage
        )
        if segment.damage:
            self._damaged.setdefault(log, {})[segment] = None
            self.on_damaged(log, segment.damage)

    def _on_disk_error(self, log: PartitionLog, segment: Segment, error: OSError) -> None:
        """Judge an error of the check; a missing file was renamed or removed meanwhile."""
        if isinstance(error, FileNotFoundError):
            return
        if self.directory.holds(log):
            log.disk.judge(error)
        self.directory.note_failure()
        logger.error("scrub failed partition=%s error=%s", log.partition, error)

    # -- known damage

    def damaged_segments(self) -> list[Segment]:
        """Return the segments with known damage."""
        return [segment for log in list(self._damaged) for segment in self._segments_of(log)]

    def damage_of(self, log: PartitionLog) -> list[DamagedRange]:
        """Return the known damage of a log, without the damage of deleted records."""
        return [
            damaged
            for segment in self._segments_of(log)
            for damaged in segment.damage
            if damaged.end_offset > log.log_start
        ]

    def _segments_of(self, log: PartitionLog) -> list[Segment]:
        """Return a log's segments with known damage; forget segments that no longer have any.

        A log without damage may be compacted again.
        """
        segments = self._damaged.get(log, {})
        if not self.directory.holds(log):
            segments = {}
        for segment in list(segments):
            if not segment.damage or _segment_at(log, segment.base_offset) is not segment:
                del segments[segment]
        if not segments and self._damaged.pop(log, None) is not None:
            self.busy.cleaning.note_cleanable(log)
        return list(segments)

    async def read_damaged(self, log: PartitionLog, damaged: DamagedRange) -> bytes:
        """Return the bytes of a damaged range unchanged; raises KafkaStorageError."""
        segment = _segment_at(log, damaged.first_offset)
        read = list[bytes]()
        file, position, size = segment.file, damaged.position, damaged.size
        try:
            file.pin()
            try:
                with trio.CancelScope(shield=True):
                    await self.in_thread(log.disk, lambda: read.append(file.read(position, size)))
            finally:
                file.unpin()
        except OSError as error:
            raise storage_error(log.changes, error) from error
        return read[0]

    async def restore(
        self, log: PartitionLog, damaged: DamagedRange, data: Buffer, end_offset: int
    ) -> bool:
        """Write intact batches to the start of a damaged range; return whether that was done.

        The batches end at ``end_offset``, and are the log's own: the caller has verified them. They
        are not read before they are synced. Raises KafkaStorageError.
        """
        async with self.busy.claim(log):
            if not self.directory.holds(log):
                return False
            segment = _segment_at(log, damaged.first_offset)
            if not _contains(segment.damage, damaged) or len(data) > damaged.size:
                return False
            try:
                with trio.CancelScope(shield=True):
                    await self._write(segment, damaged.position, data)
            except OSError as error:
                raise storage_error(log.changes, error) from error
            self._shrink(log, segment, damaged, len(data), end_offset)
        return True

    async def _write(self, segment: Segment, position: int, data: Buffer) -> None:
        file, disk = segment.file, segment.files.disk
        file.pin()
        try:
            write = partial(_write_synced, disk, file, position, data, segment.modified_ms)
            await self.in_thread(disk, write)
        finally:
            file.unpin()

    def _shrink(
        self,
        log: PartitionLog,
        segment: Segment,
        damaged: DamagedRange,
        size: int,
        end_offset: int,
    ) -> None:
        """Let reads return the first ``size`` bytes of a range again."""
        text = "restored damaged batches file=%s/%s offset=%d end_offset=%d bytes=%d"
        path = segment.file.path
        logger.warning(text, self.directory.name, path, damaged.first_offset, end_offset, size)
        if size < damaged.size:
            damaged.position += size
            damaged.first_offset = end_offset
            return
        self.restored_count += 1
        segment.damage = Damage(other for other in segment.damage if other is not damaged)
        segments = self._damaged.get(log, {})
        if not segment.damage:
            segments.pop(segment, None)
        if not segments:
            self._segments_of(log)


def _segment_at(log: PartitionLog, offset: int) -> Segment:
    return log.segments[log.segments.index_of(offset)]


def _write_synced(disk: Disk, file: File, position: int, data: Buffer, modified_ms: int) -> None:
    """Overwrite a part of a closed segment's file, whose time retention uses, in a thread."""
    file.write((data,), position)
    file.sync()
    if modified_ms > 0:
        disk.set_modified(file.path, modified_ms)


def _next_closed(log: PartitionLog, after: int) -> Segment | None:
    """Return the first synced closed segment whose base offset is above ``after``, if any."""
    segments = log.segments
    index = segments.index_of(after)
    if segments[index].base_offset <= after:
        index += 1
    following = segments[index + 1 : index + 2]
    if not following or following[0].base_offset > log.flush_state.recovery_point:
        return None
    return segments[index]


def _closed_at(log: PartitionLog, segment: Segment) -> list[Segment]:
    """Return the closed segment that is now at a segment's place in the log, if any."""
    index = log.segments.index_of(segment.base_offset)
    return log.segments[index : index + 1] if index < len(log.segments) - 1 else []


def _job(log: PartitionLog, segment: Segment, bytes_per_second: float) -> SegmentJob:
    segments = log.segments
    end_offset = segments[segments.index_of(segment.base_offset) + 1].base_offset
    entries = log.epochs.between(segment.base_offset, end_offset)
    return SegmentJob(
        directory=segments.directory,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size=segment.size,
        epochs=tuple(entries),
        bytes_per_second=bytes_per_second,
        # Until its indexes are on the disk, nothing reads their files.
        index_interval=None if segment.has_indexes else segment.interval,
    )


def _contains(ranges: tuple[DamagedRange, ...], damaged: DamagedRange) -> bool:
    return any(each is damaged for each in ranges)


def _report(directory: LogDirectory, segment: Segment, damaged: DamagedRange) -> None:
    logger.error(
        "damaged batch file=%s/%s position=%d bytes=%d offset=%d end_offset=%d reason=%s",
        directory.name,
        segment.file.path,
        damaged.position,
        damaged.size,
        damaged.first_offset,
        damaged.end_offset,
        damaged.reason,
    )
