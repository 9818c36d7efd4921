"""The flushes of one directory's logs: on request, after ``flush.ms``, and after a roll.

Rules: a log has one flush at a time, and one fsync serves every caller that waits for it. A caller
waits only for the flush that serves it. Tasks that wait for the log to become idle take precedence
over the next flush, so that a log that is flushed constantly does not keep them waiting forever. A
flush cannot be cancelled once its thread runs. A flush that fails for lack of descriptors is
retried. A task that waits for work holds no reference to a log, so that deleted logs are freed.
"""

import logging
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.deadlines import Deadlines
from kwire.log.directories.busy_logs import BusyLogs, RunningFlush
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk_health import RETRY_SECONDS, lacks_descriptors
from kwire.log.flush import Flush
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import InThread
from kwire.waits import Signal

logger = logging.getLogger(__name__)

FLUSH_NEVER_MS: Final = 1 << 40
"""A ``flush.ms`` above this means "never"."""


@attrs.define(eq=False, repr=False)
class LogFlusher:
    """Makes the records of one directory's logs durable."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    busy: BusyLogs
    timers: Deadlines[PartitionLog] = attrs.field(init=False, factory=Deadlines)
    """The time at which each log's ``flush.ms`` expires."""
    _unsynced_since: dict[PartitionLog, float] = attrs.field(init=False, factory=dict)
    """The append time of the first unsynced record, for logs with a finite ``flush.ms``."""
    _rolled: dict[PartitionLog, None] = attrs.field(init=False, factory=dict)
    """Logs whose closed segments or removed names have to be synced, in order."""
    _roll: Signal = attrs.field(init=False, factory=Signal)

    async def flush(
        self, log: PartitionLog, end_offset: int | None = None, *, indexes: bool = False
    ) -> None:
        """Wait until everything that has been written so far is durable.

        If the directory is slow, this waits for queued writes below ``end_offset``. ``indexes``
        includes the index files of closed segments, which recovery could rebuild. Raises
        KafkaStorageError if the log was truncated below ``end_offset`` meanwhile.
        """
        state, busy = log.flush_state, self.busy
        target = log.writer.written_offset if end_offset is None else end_offset
        is_later_needed = bool(state.unsynced)  # The running flush does not sync these files.
        while state.recovery_point < (reachable := min(target, log.end_offset)) or (
            indexes and (state.unsynced or log in busy.flushes)
        ):
            running = busy.flushes.get(log)
            if running is not None:
                await running.ended.wait()
                if running.flush.has_succeeded and not is_later_needed:
                    indexes = False
                is_later_needed = False
                continue
            if log.writer.written_offset < reachable and log in busy.queues:
                await busy.queues[log].wait()
                continue
            if await busy.wait_turn(log):
                continue
            try:
                flush = state.start_part(end_offset) if self.directory.holds(log) else None
            except KafkaStorageError:
                self._retry_timed(log)
                raise
            if flush is None:
                raise KafkaStorageError(f"{log.partition}: never written, or deleted")
            await self._run_flush(log, flush)
            indexes = False
        if target > log.end_offset:
            raise KafkaStorageError(f"{log.partition}: truncated below {target}")

    def on_change(self, log: PartitionLog) -> None:
        """Start the ``flush.ms`` timer at the first unsynced record; no change restarts it."""
        if log.flush_state.recovery_point >= log.end_offset:
            self._unsynced_since.pop(log, None)
            return
        if log.config.flush_ms >= FLUSH_NEVER_MS or log.disk.failed is not None:
            return
        since = self._unsynced_since.setdefault(log, self.clock.now())
        self.timers.arm(log, since + log.config.flush_ms / 1000)

    def on_roll(self, log: PartitionLog) -> None:
        """Schedule a sync of a log's closed segments or removed names."""
        self._rolled[log] = None
        self._roll.set()

    def forget(self, log: PartitionLog) -> None:
        """Cancel all work for a removed log."""
        self._rolled.pop(log, None)
        self._unsynced_since.pop(log, None)
        self.timers.disarm(log)

    async def flush_timed(self) -> None:
        """Flush logs whose oldest unsynced record is ``flush.ms`` old, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._start_timed(nursery)

    async def _start_timed(self, nursery: trio.Nursery) -> None:
        due_logs = await self.timers.wait(self.clock)
        now, slices = self.clock.now(), Slices(self.clock.now)
        for log in due_logs:
            await slices.pause()  # Thousands of logs may be due at the same moment.
            since = self._unsynced_since.get(log)
            if since is None:
                continue
            due = since + log.config.flush_ms / 1000
            if due <= now:
                nursery.start_soon(self._try_flush, log, log.end_offset)
            elif log.config.flush_ms < FLUSH_NEVER_MS:
                self.timers.arm(log, due)

    async def flush_rolled(self) -> None:
        """Sync closed segments until cancelled, so that recovery does not have to read them."""
        while True:
            await self._roll.wait()
            self._roll.clear()
            await self._flush_rolled()

    async def _flush_rolled(self) -> None:
        rolled, self._rolled = list(self._rolled), {}
        unsynced = [
            log
            for log in rolled
            if not await self._try_flush(log, log.segments.active.base_offset, indexes=True)
        ]
        if unsynced:
            await trio.sleep(RETRY_SECONDS)
        for log in unsynced:
            if self.directory.holds(log):
                self.on_roll(log)

    def _retry_timed(self, log: PartitionLog) -> None:
        """Retry a flush for ``flush.ms`` that could not start, after a delay."""
        if log in self._unsynced_since:
            self._unsynced_since[log] = self.clock.now() + RETRY_SECONDS
            self.on_change(log)

    async def _run_flush(self, log: PartitionLog, flush: Flush) -> None:
        running = self.busy.flushes[log] = RunningFlush(flush)
        since = self._unsynced_since.pop(log, None)
        end_offset = log.end_offset
        try:
            with trio.CancelScope(shield=True):
                await self.in_thread(log.disk, flush.run)
        except OSError as error:
            if since is not None:
                since = self.clock.now() + RETRY_SECONDS
            self.directory.note_failure()
            raise KafkaStorageError(f"{log.partition}: {error}") from error
        finally:
            log.flush_state.end(flush)
            synced_end = log.flush_state.recovery_point
            if since is not None and synced_end < min(end_offset, log.end_offset):
                self._unsynced_since[log] = since  # Some older records are still unsynced.
            if self.directory.holds(log):
                self.on_change(log)
            del self.busy.flushes[log]
            running.ended.set()

    async def _try_flush(
        self, log: PartitionLog, end_offset: int | None, *, indexes: bool = False
    ) -> bool:
        """Flush a log if it is still here; return False if it failed for lack of descriptors.

        In that case a retry may succeed.
        """
        if not self.directory.holds(log):
            return True
        try:
            await self.flush(log, end_offset, indexes=indexes)
        except KafkaStorageError as error:
            logger.error("flush failed partition=%s error=%s", log.partition, error)
            return not lacks_descriptors(error)
        return True
