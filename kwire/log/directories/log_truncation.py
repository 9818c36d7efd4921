"""The truncation of one directory's logs, for followers whose log differs from the leader's.

Rules: a log is claimed for its whole truncation. First the producer state is rebuilt in slices,
beside the state in use; meanwhile the log serves reads, accepts flushes and, if its broker becomes
the leader, appends. Then the offsets in the checkpoints are lowered. The cut itself is one
synchronous step, and happens only if it is still wanted at that time. A cut across many segments is
made in steps, each of which leaves a valid log. If the cut is no longer wanted, the checkpoints get
the log's own offsets back: a lower log start would undo an acknowledged DeleteRecords at the next
crash.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs

from kwire.clock import Clock
from kwire.drive import Slices, give_way
from kwire.log.cold_lookups import LookUp, Prepare, preparation, run_all
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.directory import LogDirectory
from kwire.log.error_mapping import storage_error, storage_errors
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.producer_snapshots import finish_rebuild
from kwire.log.producers import ProducerStates
from kwire.log.segments import warming
from kwire.log.threads import InThread

STEP_SEGMENTS: Final = 16
"""The largest number of segments that one step of a cut removes."""


def _always() -> bool:
    return True


@attrs.define(eq=False, repr=False)
class LogTruncation:
    """Truncates the logs of one directory."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    busy: BusyLogs
    checkpoints: Checkpointer
    deleted_logs: set[PartitionLog]
    """Deleted logs that are still in the directory."""

    async def truncate(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool] = _always
    ) -> bool:
        """Remove everything from ``offset`` onwards; return whether there was anything.

        ``is_wanted`` is called last, once no thread is working on the log: a follower that has
        become the leader meanwhile must not truncate.

        Writes that wait for room on a full disk are removed too: the producer state is rebuilt from
        the written data, and the queued batches were not acknowledged. So the log may end below
        ``offset``.

        Before the cut, the recovery point and the log start on disk are lowered to it.
        Otherwise the batches that are appended next would count as synced, and a log start above
        the log end would remove them.
        """
        is_cut = False
        async with self.busy.claim(log):
            while self._may_cut(log, is_wanted):
                end_offset = _cut_end(log, offset)
                if end_offset >= log.end_offset:
                    return log.truncate_to(offset, self.clock.now_ms()) or is_cut
                step_end = end_offset
                if len(log.segments) > STEP_SEGMENTS:
                    step_end = max(end_offset, log.segments[-STEP_SEGMENTS].base_offset)
                producers = await self._rebuild_producers(log, step_end, is_wanted)
                await self._prepare_cut(log, step_end)
                async with self._lowered_checkpoints(log, end_offset, is_wanted) as may_cut:
                    if not may_cut:
                        break
                    if end_offset == _cut_end(log, offset):
                        log.truncate_to(step_end, self.clock.now_ms(), producers)
                        is_cut = True
                await give_way()
        return is_cut

    async def restart_at(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool] = _always
    ) -> bool:
        """Remove all records and continue at ``offset``; return whether that was done.

        ``is_wanted`` is used as in :meth:`truncate`.
        """
        async with (
            self.busy.claim(log),
            self._lowered_checkpoints(log, offset, is_wanted) as may_cut,
        ):
            if not may_cut or not await self._drop_segments(log, is_wanted):
                return False
            log.truncate_fully_at(offset, self.clock.now_ms())
            return True

    async def _drop_segments(self, log: PartitionLog, is_wanted: Callable[[], bool]) -> bool:
        """Drop all segments but the last, in slices; return whether the cut is still wanted.

        The oldest segment goes first, as in retention, so the log is valid after each step.
        """
        slices = Slices(self.clock.now)
        while len(log.segments) > 1:
            segment = log.segments[0]
            log.on_removed(log, [segment], log.drop_segments(1))
            await slices.pause()
            await self.busy.wait_threads(log)
            if not self._may_cut(log, is_wanted):
                log.on_roll(log)  # The directory must be synced.
                return False
        return True

    async def _rebuild_producers(
        self, log: PartitionLog, end_offset: int, is_wanted: Callable[[], bool]
    ) -> ProducerStates | None:
        """Return the producer state below ``end_offset``, built beside the state in use.

        Appends may continue meanwhile. Return None if there are no producers, or if the cut is no
        longer wanted. Raises KafkaStorageError.
        """
        if not len(log.producers):
            return None
        rebuild = log.snapshots.rebuilding(end_offset, log.high_watermark)
        slices = Slices(self.clock.now)
        read = partial(self.in_thread, log.disk)
        may_go_on = partial(self._may_cut, log, is_wanted)
        try:
            return await finish_rebuild(rebuild, read, slices.pause, may_go_on)
        except OSError as error:
            raise storage_error(log.changes, error) from error

    async def _prepare_cut(self, log: PartitionLog, end_offset: int) -> None:
        """Have a thread read what a cut at ``end_offset`` looks up, and rebuild wrong indexes.

        Raises KafkaStorageError.
        """
        segment = log.segments[log.segments.last_below(end_offset)]
        lookups: tuple[tuple[LookUp, Prepare], ...] = (
            (partial(segment.locate, end_offset), partial(warming.lookups, segment, end_offset)),
            (segment.largest_timestamp, partial(warming.ages, segment)),
            (segment.indexes.aborted.entries, partial(warming.read_aborted, [segment], end_offset)),
        )
        for look_up, make_job in lookups:
            with storage_errors(log.changes):
                for job in preparation(look_up, make_job):
                    await self.in_thread(log.disk, partial(run_all, [job]))

    @asynccontextmanager
    async def _lowered_checkpoints(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool]
    ) -> AsyncIterator[bool]:
        """Lower the offsets on disk to ``offset``; yield whether the log may now be cut there.

        If it may, no thread works on the log, the offsets are stored, and the cut is still wanted,
        which is checked after each wait. The caller must cut before it waits for anything else. If
        the log must not be cut, its own offsets are stored again. The caller has claimed the log;
        otherwise tasks that wait for the end of the cut would try again without a pause.
        """
        assert log in self.busy.cuts, f"{log.partition} is cut without a claim"
        state, is_stored, files = log.flush_state, False, list[str]()
        state.cut_offset = offset
        try:
            while True:
                await self.busy.wait_threads(log)
                may_cut = self._may_cut(log, is_wanted)
                if not may_cut or (is_stored and state.recovery_point <= offset):
                    break
                state.recovery_point = min(state.recovery_point, offset)
                files = _lowered_files(log, offset)
                is_stored = await self.checkpoints.write(*files)
                if not is_stored:
                    may_cut = False
                    break
            if is_stored and not may_cut:
                state.end_cut()
                await self.checkpoints.write(*files)
            yield may_cut
        finally:
            state.end_cut()
            if self.directory.holds(log):
                # After a cancellation, the lowered offsets may be on disk.
                self.checkpoints.mark(log)

    def _may_cut(self, log: PartitionLog, is_wanted: Callable[[], bool]) -> bool:
        """Return whether the cut is still wanted and the log has not been deleted."""
        is_here = self.directory.holds(log) and log not in self.deleted_logs
        return is_here and is_wanted()


def _lowered_files(log: PartitionLog, offset: int) -> list[str]:
    """Return the checkpoint files that may contain an offset above a cut at ``offset``."""
    files = [names.RECOVERY_POINTS, names.LOG_STARTS]
    if (log.clean_state.clean_end or 0) > log.segments[log.segments.index_of(offset)].base_offset:
        files.append(names.CLEANER_OFFSETS)
    return files


def _cut_end(log: PartitionLog, offset: int) -> int:
    """Return where the log ends after a truncation to ``offset``; queued writes are dropped too."""
    return min(offset, log.writer.written_offset) if log.writer.queue else offset
