"""The deletion of old segments in one directory, every ``log.retention.check.interval.ms``.

It also forgets idle producers, at an interval of their own.

:mod:`kwire.log.directories.retention_plan` chooses the segments. Rules: between two segments, the
log may be deleted, truncated or appended to. A deleted segment's files are renamed, and removed
after ``file.delete.delay.ms``. A segment that the disk refuses to rename stays in the log until the
next check. While segments of a log are deleted, no compaction of the log starts; a running
compaction is not interrupted but postpones the deletion.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import attrs
import trio

from kwire.clock import Clock, SteadyWall
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.cold_lookups import preparation, run_all
from kwire.log.directories import retention_plan
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.flusher import LogFlusher
from kwire.log.directories.removal import Removals
from kwire.log.partition_log import PartitionLog
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class LogRetention:
    """Deletes segments past retention from the logs of one directory."""

    directory: LogDirectory
    clock: Clock
    busy: BusyLogs
    flusher: LogFlusher
    removals: Removals
    postponed: set[PartitionLog] = attrs.field(init=False, factory=set)
    """The logs that were being compacted when their check was due; they are checked afterwards."""
    steady: SteadyWall = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.steady = SteadyWall(self.clock)

    async def run(self, interval_s: float) -> None:
        """Check every log once per interval (seconds), until cancelled."""
        while True:
            await trio.sleep(interval_s)
            await self._visit_logs(self.retain)

    async def run_expiry(self, interval_s: float) -> None:
        """Forget the expired producers of every log once per interval (seconds), until cancelled.

        The interval is ``producer.id.expiration.check.interval.ms``.
        """
        while True:
            await trio.sleep(interval_s)
            await self._visit_logs(self.expire_producers)

    async def _visit_logs(self, visit: Callable[[PartitionLog], Awaitable[object]]) -> None:
        """Call ``visit`` for every log of the directory, in slices."""
        slices = Slices(self.clock.now)
        for log in list(self.directory.logs.values()) if self.directory.online else ():
            if self.directory.holds(log):
                await visit(log)
            await slices.pause()

    async def expire_producers(self, log: PartitionLog) -> None:
        """Forget the log's producers that have been idle for too long, in slices."""
        slices = Slices(self.clock.now)
        # A jump of the clock must not expire producers.
        expiry_ms = min(self.clock.now_ms(), self.steady.now_ms())
        for _ in log.producers.expiring(expiry_ms, log.config.producer_id_expiration_ms):
            await slices.pause()

    async def retain(self, log: PartitionLog) -> int:
        """Delete segments past retention, in slices; return the number of segments deleted.

        A log that is being compacted is checked after the pass, which a deletion would abort.
        """
        if self.busy.cleaning.is_cleaning(log):
            self.postponed.add(log)
            return 0
        self.postponed.discard(log)
        with self.busy.cleaning.pause(log, by_retention=True):
            return await self._retain(log)

    async def _retain(self, log: PartitionLog) -> int:
        now_ms, slices = self.clock.now_ms(), Slices(self.clock.now)
        deleted: list[Segment] = []
        paths: list[str] = []
        try:
            await self._load_ages(log, now_ms, slices)
            await self.busy.wait_idle(log)
            deletion = retention_plan.plan(
                log.segments,
                log.config,
                log_start=log.log_start,
                high_watermark=log.high_watermark,
                copied_end=log.copied_end,
                now_ms=now_ms,
            )
            if deletion.roll:
                log.roll(now_ms)
            removal_count = log.clean_state.removal_count
            for segment in log.segments[: deletion.count]:
                await self._keep_producers(log)
                await self.busy.wait_idle(log)
                if not self.directory.holds(log) or segment is not log.segments[0]:
                    break  # During a pause, the log was deleted or the segment removed.
                if len(log.segments) == 1:
                    break
                if log.clean_state.removal_count != removal_count + len(deleted):
                    break  # The log was cut; a remaining segment may have new records.
                self.busy.cleaning.abort_scrub(log)
                paths += log.drop_segments(1)
                deleted.append(segment)
                await slices.pause()
        except (OSError, KafkaStorageError) as error:
            self.directory.note_failure()
            logger.error("retention failed partition=%s error=%s", log.partition, error)
        if deleted:
            if self.directory.holds(log):
                self.flusher.on_roll(log)  # The directory must be synced because of the renames.
                self.removals.add(log.disk, paths, log.config.file_delete_delay_ms, deleted)
            logger.info("deleted segments=%d partition=%s", len(deleted), log.partition)
        return len(deleted)

    async def _keep_producers(self, log: PartitionLog) -> None:
        """Have a thread write the snapshot of the first segment's producers if it still waits.

        The removal would write it on the event loop, which may take long.
        """
        if len(log.segments) == 1 or not len(log.producers):
            return
        if log.snapshots.is_waiting(log.segments[1].base_offset):
            with suppress(KafkaStorageError):  # The removal may make room.
                await self.flusher.flush(log, log.segments.active.base_offset, indexes=True)

    async def _load_ages(self, log: PartitionLog, now_ms: int, slices: Slices) -> None:
        """Load the old segments' largest timestamps in slices, because there may be many."""
        if not log.config.cleanup_delete or log.config.retention_ms < 0:
            return
        for segment in list(log.segments):
            for job in preparation(segment.largest_timestamp, partial(warming.ages, segment)):
                await self.flusher.in_thread(log.disk, partial(run_all, [job]))
            if now_ms - segment.largest_timestamp() <= log.config.retention_ms:
                return
            await slices.pause()
