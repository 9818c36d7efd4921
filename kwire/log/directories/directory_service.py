"""One log directory in operation: watches its logs, runs its tasks, and closes it cleanly.

Rules: each directory has one service, with its own tasks and threads, so that a directory that
hangs does not hold up another. If nothing changes, only the retention task wakes up.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.config import DEFAULTS, LogConfig, LogSettings
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.flusher import LogFlusher
from kwire.log.directories.log_retention import LogRetention
from kwire.log.directories.log_truncation import LogTruncation
from kwire.log.directories.queue_writer import QueueWriter
from kwire.log.directories.removal import Removals
from kwire.log.disk_health import FAILED_SYNC
from kwire.log.flush import Flush
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog, remove_files
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread
from kwire.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from kwire.log.directories.log_cleaning import LogCleaning

logger = logging.getLogger(__name__)

CLOSED_AT_ONCE: Final = 16
"""The number of logs that a shutdown syncs together; their files stay open until then."""


def _ignore(_: PartitionLog) -> None: ...


def _was_cut_since(log: PartitionLog, ended_cut_count: int) -> bool:
    """Return whether a cut was in progress at any time since ``ended_cut_count`` was read."""
    state = log.flush_state
    return state.cut_offset is not None or state.ended_cut_count != ended_cut_count


class _WatchedLog:
    """The notifications of one log: its bound methods take a third of what partials take."""

    __slots__ = ("log", "service")

    def __init__(self, service: "DirectoryService", log: PartitionLog) -> None:
        self.service = service
        self.log = log

    def on_change(self) -> None:
        self.service.on_change(self.log)

    def on_queued(self) -> None:
        self.service.writer.start(self.log)

    def on_compactable(self) -> None:
        self.service.check_compactable(self.log)


@attrs.define(eq=False, repr=False)
class DirectoryService:
    """The logs of one directory, and all slow work on them."""

    directory: LogDirectory
    clock: Clock
    settings: LogSettings
    in_thread: InThread
    random_below: Callable[[int], int]
    """Returns a random number from 0 up to, but not including, its argument."""
    busy: BusyLogs = attrs.field(init=False, factory=BusyLogs)
    checkpoints: Checkpointer = attrs.field(init=False)
    removals: Removals = attrs.field(init=False)
    writer: QueueWriter = attrs.field(init=False)
    flusher: LogFlusher = attrs.field(init=False)
    retention: LogRetention = attrs.field(init=False)
    _cleaning: "LogCleaning | None" = attrs.field(init=False, default=None)
    truncation: LogTruncation = attrs.field(init=False)
    on_compactable: Callable[[PartitionLog], None] = attrs.field(init=False, default=_ignore)
    """Called when a compacted log may have become due."""
    deleted_logs: set[PartitionLog] = attrs.field(init=False, factory=set)
    """Deleted logs that a thread is still working on."""

    def __attrs_post_init__(self) -> None:
        directory, clock, in_thread, busy = self.directory, self.clock, self.in_thread, self.busy
        self.checkpoints = Checkpointer(directory, clock, in_thread)
        self.removals = Removals(clock, in_thread)
        self.writer = QueueWriter(directory, in_thread, busy)
        self.flusher = LogFlusher(directory, clock, in_thread, busy)
        self.retention = LogRetention(directory, clock, busy, self.flusher, self.removals)
        self.truncation = LogTruncation(
            directory, clock, in_thread, busy, self.checkpoints, self.deleted_logs
        )

    @property
    def cleaning(self) -> "LogCleaning":
        """The compaction of this directory's logs; imported for the first compacted log."""
        if self._cleaning is None:
            from kwire.log.directories.log_cleaning import LogCleaning
            from kwire.log.directories.segment_swap import SegmentSwap

            directory, clock, in_thread, busy = (
                self.directory,
                self.clock,
                self.in_thread,
                self.busy,
            )
            self._cleaning = LogCleaning(
                directory,
                clock,
                in_thread,
                busy,
                self.checkpoints,
                self.flusher,
                self.retention,
                SegmentSwap(directory, clock, in_thread, busy, self.removals),
            )
        return self._cleaning

    # -- logs

    async def load(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log, recovering those that were not closed cleanly."""
        if self.directory.note_failure():
            return
        slices = Slices(self.clock.now)
        try:
            for wait_s in self.directory.load(config_of, self.clock.now_ms()):
                if wait_s is not None:
                    await trio.sleep(wait_s)
                await slices.pause()
            if self.directory.has_failed_sync():
                await self._write_again()
        except (OSError, KafkaStorageError) as error:
            if not self.directory.note_failure():
                raise
            logger.error("cannot open directory=%s error=%s", self.directory.name, error)
        for log in self.directory.all_logs:
            self.watch(log)
            if log.flush_state.unsynced.closed:  # It was recovered; the next recovery can be short.
                self.flusher.on_roll(log)
            await slices.pause()

    async def _write_again(self) -> None:
        """Rewrite data that a failed sync of an earlier run has left only in the page cache.

        The mark of the failed sync stays if some partitions could not be opened.
        """
        # imported here, because almost no start needs it
        from kwire.log.directories import rewriting

        logger.warning("rewriting the data of a failed sync directory=%s", self.directory.name)
        for log in self.directory.all_logs:
            await rewriting.write_again(log, self.in_thread)
            await self.flusher.flush(log, indexes=True)
        if not self.directory.unopened:
            disk = self.directory.disk
            await self.in_thread(disk, partial(disk.remove, FAILED_SYNC))

    def is_of(self, log: PartitionLog, topic_id: bytes) -> bool:
        """Return whether a log holds the records of this topic and is not being deleted."""
        return log not in self.deleted_logs and log.topic_id in (topic_id, ZERO_UUID)

    def create(self, partition: TopicPartition, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """Create the log of a partition; raises KafkaStorageError."""
        try:
            log = self.directory.create(partition, topic_id, config, self.clock.now_ms())
        except OSError as error:
            self.directory.note_failure()
            raise KafkaStorageError(f"{self.directory.name}: {error}") from error
        self.watch(log)
        self.on_change(log)
        return log

    def retire(self, partition: TopicPartition, unique: bytes, suffix: str) -> None:
        """Mark the directory of a partition's log; with ``-delete`` its files are removed later.

        No thread may be working on the log, because its files are closed.
        """
        log = self.directory.find(partition)
        path = self.directory.retire(partition, unique, suffix)
        if log is not None:
            self.forget(log)
        if suffix == names.DELETE_DIRECTORY:
            delay_ms = (DEFAULTS if log is None else log.config).file_delete_delay_ms
            segments = () if log is None else log.segments
            self.removals.add(self.directory.disk, [path], delay_ms, segments)

    async def keep_starts(self, logs: Sequence[PartitionLog]) -> None:
        """Wait until the log starts of these logs are on disk; raises KafkaStorageError.

        A write during a cut may store the cut's offset instead. So if a log was being cut at any
        time during the write, its log start is rewritten after the cut.
        """
        slices = Slices(self.clock.now)
        for log in logs:
            await slices.pause()
            if log.flush_state.name_unsynced:  # A log start is useless without its directory.
                await self.flusher.flush(log)
        files = [names.HIGH_WATERMARKS, names.LOG_STARTS]
        directory = self.directory
        if directory.retired and any(directory.is_named_again(log.partition) for log in logs):
            files.append(names.RECOVERY_POINTS)
            if names.CLEANER_OFFSETS in directory.stale_files:
                files.append(names.CLEANER_OFFSETS)
        pending = list(logs)
        while pending:
            counts = {log: log.flush_state.ended_cut_count for log in pending}
            if not await self.checkpoints.write(*files):
                raise KafkaStorageError(f"{self.directory.name}: cannot store log starts")
            pending = [log for log, count in counts.items() if _was_cut_since(log, count)]
            for log in pending:
                await self.busy.wait_cut(log)

    def watch(self, log: PartitionLog) -> None:
        """Subscribe to the notifications of a log."""
        watched = _WatchedLog(self, log)
        log.changes.on_change = watched.on_change
        log.writer.on_queued = watched.on_queued
        log.on_roll = self._on_roll
        log.clean_state.on_change = watched.on_compactable
        log.on_removed = self._remove_later
        log.segments.random_below = self.random_below
        log.segments.active.roll_jitter_ms = log.config.roll_jitter_ms(self.random_below)
        self.flusher.on_change(log)
        self.check_compactable(log)

    def _on_roll(self, log: PartitionLog) -> None:
        self.flusher.on_roll(log)
        self.check_compactable(log)

    def check_compactable(self, log: PartitionLog) -> None:
        """Report a log that may have to be compacted."""
        is_current = self.directory.logs.get(log.partition) is log
        if log.config.cleanup_compact and is_current:
            self.on_compactable(log)

    def _remove_later(
        self, log: PartitionLog, segments: Sequence[Segment], paths: list[str]
    ) -> None:
        """Remove the files of segments that were cut off; later, because this takes a while."""
        self.removals.add(log.disk, paths, log.config.file_delete_delay_ms, segments)

    def on_change(self, log: PartitionLog) -> None:
        """Record that a log has changed since its last checkpoint, or that its disk has failed."""
        if self.directory.note_failure():
            return
        self.checkpoints.mark(log)
        self.flusher.on_change(log)

    def forget(self, log: PartitionLog) -> None:
        """End the subscriptions and the pending work of a log that is no longer here."""
        log.changes.on_change = lambda: None
        log.writer.on_queued = lambda: None
        log.on_roll = _ignore
        log.epochs.on_change = lambda: None  # Breaks a cycle, so that the log is freed at once.
        log.clean_state.on_change = lambda: None
        log.on_removed = remove_files
        self.retention.postponed.discard(log)
        self.busy.cleaning.forget(log)
        self.deleted_logs.discard(log)
        self.checkpoints.forget(log)
        self.flusher.forget(log)

    # -- tasks

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run checkpoints, retention, flushes and removals until cancelled."""
        settings = self.settings
        async with trio.open_nursery() as nursery:
            self.writer.nursery = nursery
            nursery.start_soon(
                self.checkpoints.keep_high_watermarks, settings.high_watermark_checkpoint_ms / 1000
            )
            nursery.start_soon(
                self.checkpoints.keep_recovery_points, settings.flush_checkpoint_ms / 1000
            )
            nursery.start_soon(self.retention.run, settings.retention_check_ms / 1000)
            nursery.start_soon(self.retention.run_expiry, settings.producer_expiry_check_ms / 1000)
            nursery.start_soon(self.flusher.flush_timed)
            nursery.start_soon(self.flusher.flush_rolled)
            nursery.start_soon(self.removals.run)
            self._remove_deleted()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.writer.nursery = None

    def _remove_deleted(self) -> None:
        """Remove directories that the last run deleted but had not removed yet."""
        paths, self.directory.deleted_directories = self.directory.deleted_directories, []
        self.removals.add(self.directory.disk, paths, DEFAULTS.file_delete_delay_ms)

    # -- clean shutdown

    async def close(self, unique: Callable[[], bytes], broker_epoch: int) -> None:
        """Write and sync everything, write the clean-shutdown marker and unlock the directory."""
        directory = self.directory
        logs = directory.all_logs if directory.online else []
        try:
            for start in range(0, len(logs), CLOSED_AT_ONCE):
                await self._close_logs(logs[start : start + CLOSED_AT_ONCE], unique)
            if directory.online:
                await self.in_thread(directory.disk, partial(directory.finish, broker_epoch))
        except (OSError, KafkaStorageError) as error:
            logger.error("clean shutdown failed directory=%s error=%s", directory.name, error)
        directory.unlock()

    async def _close_logs(self, logs: Sequence[PartitionLog], unique: Callable[[], bytes]) -> None:
        """Write and sync some logs; their files stay open until that is done."""
        flushes: list[tuple[PartitionLog, Flush]] = []

        def sync_all() -> None:
            for _, flush in flushes:
                flush.run()

        try:
            for log in logs:
                await self.busy.wait_idle(log)
                if log in self.deleted_logs:
                    self.retire(log.partition, unique(), names.DELETE_DIRECTORY)
                    continue
                state = log.flush_state
                if not state.is_one_flush or state.unsynced.closed:
                    # `finish` writes the indexes, and a start takes segments with them for synced.
                    await self.flusher.flush(log)
                log.finish()
                flush = state.start()
                if flush is not None:
                    flushes.append((log, flush))
                await trio.lowlevel.checkpoint()
            if flushes:
                await self.in_thread(self.directory.disk, sync_all)
        finally:
            for log, flush in flushes:
                log.flush_state.end(flush)
            for log in logs:
                log.segments.release()
