"""The broker's log directories: opening, creating and deleting logs, and all slow work on them.

Rules: without changes only retention wakes up. Only calls that release the interpreter go to
threads, and every file they use is pinned. A failed directory stays offline until the broker is
restarted. A directory that hangs does not hold up the others.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log import retention
from kwire.log.config import LogConfig
from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.directory import LOST_ID, LogDirectory
from kwire.log.directories.removal import Removals
from kwire.log.directories.upkeep import Upkeep
from kwire.log.disk import Disk
from kwire.log.flush import Flush
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.segment import Segment
from kwire.log.threads import DiskThreads
from kwire.log.timers import Timers
from kwire.log.trouble import Trouble, trouble
from kwire.types import ZERO_UUID, TopicPartition

log = logging.getLogger(__name__)

CLOSED_AT_ONCE: Final = 16
"""Logs that a stop syncs together; their files stay open until that is done."""
FLUSH_NEVER_MS: Final = 1 << 40
"""A ``flush.ms`` above this is "never"."""
RETRY_SECONDS: Final = 1.0
"""The delay before a failed flush or write is retried on a directory that is still online."""
Unique = Callable[[], bytes]
AtOnce = Callable[[Callable[[], None]], Awaitable[None]]


@attrs.frozen(kw_only=True)
class LogSettings:
    """The broker's own settings; the defaults are Kafka's."""

    high_watermark_checkpoint_ms: int = 5_000
    """``replica.high.watermark.checkpoint.interval.ms``"""
    flush_checkpoint_ms: int = 60_000
    """``log.flush.offset.checkpoint.interval.ms``, and the one of start offsets"""
    retention_check_ms: int = 300_000
    """``log.retention.check.interval.ms``"""


def _ignore(_: PartitionLog) -> None: ...


def _ignore_directory(_: LogDirectory) -> None: ...


@attrs.define(eq=False)
class LogManager:
    """All logs of one broker."""

    directories: Sequence[LogDirectory]
    clock: Clock
    settings: LogSettings = LogSettings()
    claimed: Sequence[LogDirectory] = ()
    """Directories of this node that hold no partitions: locked with the others, then left alone."""
    unique: Unique = attrs.field(default=partial(os.urandom, 16))
    on_written: Callable[[PartitionLog], None] = _ignore
    """Called when a slow directory has written a log's queued batches."""
    on_offline: Callable[[LogDirectory], None] = _ignore_directory
    """Called when a directory has failed; its logs then raise storage errors."""
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    in_thread: AtOnce | None = None
    """A runner of calls that wait for a disk, set by tests in place of the disk's threads."""
    threads: DiskThreads = attrs.field(factory=DiskThreads)
    _upkeep: dict[LogDirectory, Upkeep] = attrs.field(init=False)
    _flushing: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    _unsynced: dict[PartitionLog, float] = attrs.field(init=False, factory=dict)
    """The append time of the first unsynced record, for logs with a ``flush.ms``."""
    _flush_timers: Timers[PartitionLog] = attrs.field(init=False, factory=Timers)
    _writing: dict[PartitionLog, trio.Event] = attrs.field(init=False, factory=dict)
    _leaving: set[PartitionLog] = attrs.field(init=False, factory=set)
    """Deleted logs on which a thread works."""
    _offline: set[str] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._upkeep = {
            directory: Upkeep(
                Checkpointer(directory, self.clock, self._in_thread, self._note_error),
                Removals(self.clock, self._in_thread),
            )
            for directory in self.directories
        }

    # -- opening and closing

    def lock(self) -> None:
        """Lock all directories before anything in them is used; raises AlreadyLocked."""
        try:
            for directory in (*self.directories, *self.claimed):
                directory.lock()
        except OSError:
            self.abandon()
            raise

    def claim(self) -> None:
        """Declare the calling thread to be the event loop's: only it closes idle files."""
        for directory in (*self.directories, *self.claimed):
            directory.disk.claim()

    def abandon(self) -> None:
        """Close and unlock the directories without a clean stop: the next start recovers them."""
        for directory in self.directories:
            for opened in directory.logs.values():
                opened.release()
            directory.unlock()
        self._unlock_claimed()

    def _unlock_claimed(self) -> None:
        for directory in self.claimed:
            directory.unlock()

    async def open(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log, recovering those that were not closed cleanly."""
        slices = Slices(self.clock.now)
        for directory in self.directories:
            try:
                for _ in directory.load(config_of, self.clock.now_ms()):
                    await slices.pause()
            except OSError as error:
                if not self._note_error(directory):
                    raise
                log.error("cannot open directory=%s error=%s", directory.name, error)
            for opened in directory.logs.values():
                self._attach(opened)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run checkpoints, retention, flushes and removals until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._flush_timed)
            settings = self.settings
            for directory, upkeep in self._upkeep.items():
                checkpoints = upkeep.checkpoints
                interval_s = settings.high_watermark_checkpoint_ms / 1000
                nursery.start_soon(checkpoints.keep_high_watermarks, interval_s)
                interval_s = settings.flush_checkpoint_ms / 1000
                nursery.start_soon(checkpoints.keep_recovery_points, interval_s)
                nursery.start_soon(self._retention, directory)
                nursery.start_soon(self._flush_rolled, upkeep)
                nursery.start_soon(upkeep.removals.run)
                self._remove_leavings(directory)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def close(self, broker_epoch: int = -1) -> None:
        """Stop cleanly: write and sync everything, then the marker. Call it after :meth:`run`."""
        async with trio.open_nursery() as nursery:
            for directory in self.directories:
                nursery.start_soon(self._close, directory, broker_epoch)
        self._unlock_claimed()

    @property
    def previous_epoch(self) -> int:
        """The epoch of the broker's last clean stop if all directories agree on it, else -1."""
        epochs = {d.previous_epoch if d.online else -1 for d in self.directories}
        return epochs.pop() if len(epochs) == 1 else -1

    # -- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None if it is not here."""
        wanted = TopicPartition(topic, partition)
        for directory in self.directories:
            found = directory.logs.get(wanted)
            if found is not None:
                return found
        return None

    def directory_of(self, opened: PartitionLog) -> LogDirectory:
        """Return the directory that holds a log."""
        return next(d for d in self.directories if d.disk is opened.disk)

    def _upkeep_of(self, opened: PartitionLog) -> Upkeep:
        return self._upkeep[self.directory_of(opened)]

    def create(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        config: LogConfig,
        directory_id: bytes | None = None,
    ) -> PartitionLog:
        """Return the existing log of a partition, or create one.

        Raises KafkaStorageError when no directory can hold it.
        """
        wanted = TopicPartition(topic, partition)
        found = self.get(topic, partition)
        if found is not None and (
            found in self._leaving or found.topic_id not in (topic_id, ZERO_UUID)
        ):
            log.info("left over from an older topic partition=%s", wanted)
            lost = found.topic_id == LOST_ID
            self._retire(wanted, names.STRAY_DIRECTORY if lost else names.DELETE_DIRECTORY)
            found = None
        if found is not None:
            directory = self.directory_of(found)
            if not directory.online:
                raise KafkaStorageError(f"{directory.name} is offline")
            if found.topic_id == ZERO_UUID:
                directory.adopt(found, topic_id)
            found.config = config
            return found
        self._refuse_unopened(wanted, topic_id)
        directory = self._choose(directory_id)
        try:
            made = directory.create(wanted, topic_id, config, self.clock.now_ms())
        except OSError as error:
            self._note_error(directory)
            raise KafkaStorageError(f"{directory.name}: {error}") from error
        self._attach(made)
        self._mark(made)
        return made

    def _refuse_unopened(self, wanted: TopicPartition, topic_id: bytes) -> None:
        """Raise KafkaStorageError if the partition has an unreadable log of this topic.

        An unreadable log of an older topic is retired instead.
        """
        for directory in self.directories:
            held = directory.unopened.get(wanted)
            if held is not None:
                if held.topic_id in (topic_id, ZERO_UUID):
                    raise KafkaStorageError(f"{wanted} in {directory.name} could not be opened")
                self._retire(wanted, names.DELETE_DIRECTORY)

    async def delete(self, topic: str, partition: int) -> None:
        """Delete a partition's log; its files are removed after ``file.delete.delay.ms``."""
        wanted = TopicPartition(topic, partition)
        found = self.get(topic, partition)
        if found is not None:
            await self._until_idle(found)
        self._retire(wanted, names.DELETE_DIRECTORY)

    def delete_soon(self, opened: PartitionLog) -> None:
        """The same without waiting: where a thread works on the log, it goes when that is done.

        It is nobody's log from now on, also if it has to be looked for under its name meanwhile.
        """
        if opened not in self._flushing and opened not in self._writing:
            self._retire(opened.partition, names.DELETE_DIRECTORY)
            return
        self._leaving.add(opened)
        if self._nursery is not None:
            self._nursery.start_soon(self._delete_idle, opened)

    async def _delete_idle(self, opened: PartitionLog) -> None:
        await self._until_idle(opened)
        try:
            if self._has(opened):
                self._retire(opened.partition, names.DELETE_DIRECTORY)
        except (OSError, KafkaStorageError):
            log.exception("cannot delete partition=%s", opened.partition)

    def strays(self, keep: Callable[[TopicPartition, bytes], bool]) -> list[TopicPartition]:
        """Mark the logs that ``keep`` rejects as ``-stray``; return their partitions."""
        gone = []
        for directory in self.directories:
            for wanted, opened in list(directory.logs.items()):
                if not keep(wanted, opened.topic_id):
                    directory.retire(wanted, self.unique(), names.STRAY_DIRECTORY)
                    self._forget(directory, opened)
                    gone.append(wanted)
        return gone

    async def flush(
        self, opened: PartitionLog, end_offset: int | None = None, *, indexes: bool = False
    ) -> None:
        """Return once everything written by now is durable; one fsync serves all waiting callers.

        It waits for a slow directory's queued writes below ``end_offset``. ``indexes`` includes the
        index files of closed segments, which recovery could rebuild. Raises KafkaStorageError when
        ``end_offset`` was truncated meanwhile.
        """
        target = opened.written_offset if end_offset is None else end_offset
        while opened.recovery_point < (wanted := min(target, opened.end_offset)) or (
            indexes and (opened.unsynced or opened in self._flushing)
        ):
            running = self._flushing.get(opened)
            if running is None and opened.written_offset < wanted:
                running = self._writing.get(opened)
            if running is not None:
                await running.wait()
                continue
            try:
                flush = opened.start_flush(end_offset) if self._has(opened) else None
            except KafkaStorageError:
                self._flush_again(opened)
                raise
            if flush is None:
                raise KafkaStorageError(f"{opened.partition}: never written, or deleted")
            await self._run_flush(opened, flush)
        if target > opened.end_offset:
            raise KafkaStorageError(f"{opened.partition}: truncated below {target}")

    async def truncate(self, opened: PartitionLog, offset: int) -> bool:
        """Remove everything from ``offset`` on; return whether there was anything.

        Writes that wait for room on a full disk are removed too: the producer state is rebuilt from
        what is written, and the queued batches were not acknowledged. So the log may end below
        ``offset``.

        It returns once the recovery point on disk is not above the new log end: the batches that
        are appended next are not synced.
        """
        await self._until_idle(opened)
        if opened.behind:
            offset = min(offset, opened.written_offset)
        cut = opened.truncate_to(offset, self.clock.now_ms())
        await self._upkeep_of(opened).checkpoints.write(names.RECOVERY_POINTS)
        return cut

    async def keep_starts(self, moved: Iterable[PartitionLog]) -> None:
        """Return once the start offsets of these logs are on disk, so that deletions are durable.

        Raises KafkaStorageError when that is not possible.
        """
        logs = list(moved)
        for opened in logs:
            if opened.name_unsynced:  # A start offset is useless without its directory.
                await self.flush(opened)
        for directory in {self.directory_of(opened) for opened in logs}:
            files = [names.HIGH_WATERMARKS, names.LOG_STARTS]
            if any(directory.is_named_again(opened.partition) for opened in logs):
                files.append(names.RECOVERY_POINTS)
            if not await self._upkeep[directory].checkpoints.write(*files):
                raise KafkaStorageError(f"{directory.name}: where logs start cannot be kept")

    def statistics(self) -> Mapping[str, int]:
        """Return the numbers for metrics."""
        return {
            "logs": sum(len(d.logs) for d in self.directories),
            "offline_directories": sum(not d.online for d in self.directories),
            "full_directories": sum(d.disk.full for d in self.directories),
            "writing_behind": len(self._writing),
        }

    # -- notifications of the logs

    def _attach(self, opened: PartitionLog) -> None:
        opened.changed = self._mark
        opened.on_behind = self._write_behind
        opened.on_roll = self._note_roll
        self._time_flush(opened)

    def _mark(self, opened: PartitionLog) -> None:
        """Note that a log has changed since its last checkpoint, or that its disk has failed."""
        directory = self.directory_of(opened)
        if self._note_error(directory):
            return
        self._upkeep[directory].checkpoints.mark(opened)
        self._time_flush(opened)

    def _time_flush(self, opened: PartitionLog) -> None:
        """Start ``flush.ms`` at the first unsynced record; later changes do not restart it."""
        if opened.recovery_point >= opened.end_offset:
            self._unsynced.pop(opened, None)
            return
        if opened.config.flush_ms >= FLUSH_NEVER_MS or opened.disk.failed is not None:
            return
        since = self._unsynced.setdefault(opened, self.clock.now())
        self._flush_timers.arm(opened, since + opened.config.flush_ms / 1000)

    def _flush_again(self, opened: PartitionLog) -> None:
        """Retry a flush for ``flush.ms`` that could not begin, after a delay."""
        if opened in self._unsynced:
            self._unsynced[opened] = self.clock.now() + RETRY_SECONDS
            self._time_flush(opened)

    def _note_roll(self, opened: PartitionLog) -> None:
        self._upkeep_of(opened).note_roll(opened)

    def _write_behind(self, opened: PartitionLog) -> None:
        if opened in self._writing:
            return
        if self._nursery is None:
            opened.settle()
            return
        self._writing[opened] = trio.Event()
        self._nursery.start_soon(self._drain, opened)

    # -- tasks

    async def _drain(self, opened: PartitionLog) -> None:
        """Write the queued batches of a log in a slow directory."""
        try:
            while opened.behind.queue:
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    job = opened.behind.take()
                    with trio.CancelScope(shield=True):  # A taken job is no longer queued.
                        await self._in_thread(opened.disk, job.run)
                except OSError as error:
                    log.error("write failed partition=%s error=%s", opened.partition, error)
                    if not self._may_write_again(opened, error):
                        return
                    await trio.sleep(RETRY_SECONDS)
                    continue
                opened.written()
                self.on_written(opened)
        finally:
            self._writing.pop(opened).set()

    def _may_write_again(self, opened: PartitionLog, error: OSError) -> bool:
        """Put a failed job back into the queue; return whether to retry it soon."""
        if opened.behind.running is not None:
            opened.behind.put_back()
        failed = self._note_error(self.directory_of(opened))
        return not failed and trouble(error) is Trouble.NO_DESCRIPTORS

    async def _flush_timed(self) -> None:
        """Flush logs whose oldest unsynced record is ``flush.ms`` old."""
        async with trio.open_nursery() as nursery:
            while True:
                due_logs = await self._flush_timers.wait(self.clock)
                now = self.clock.now()
                for opened in due_logs:
                    since = self._unsynced.get(opened)
                    if since is None:
                        continue
                    due = since + opened.config.flush_ms / 1000
                    if due <= now:
                        nursery.start_soon(self._try_flush, opened, opened.end_offset)
                    elif opened.config.flush_ms < FLUSH_NEVER_MS:
                        self._flush_timers.arm(opened, due)

    async def _flush_rolled(self, upkeep: Upkeep) -> None:
        """Sync closed segments, so that recovery does not have to read them."""
        while True:
            again = [
                opened
                for opened in await upkeep.wait_rolled()
                if not await self._try_flush(opened, opened.active.base_offset, indexes=True)
            ]
            if again:
                await trio.sleep(RETRY_SECONDS)
            for opened in again:
                if self._has(opened):
                    upkeep.note_roll(opened)

    async def _retention(self, directory: LogDirectory) -> None:
        while True:
            await trio.sleep(self.settings.retention_check_ms / 1000)
            slices = Slices(self.clock.now)
            for opened in list(directory.logs.values()) if directory.online else ():
                if self._has(opened):
                    await self.retain(opened)
                await slices.pause()

    async def retain(self, opened: PartitionLog) -> int:
        """Delete segments past retention, in slices; return the number of segments deleted."""
        now_ms, slices = self.clock.now_ms(), Slices(self.clock.now)
        opened.producers.expire(now_ms, opened.config.producer_id_expiration_ms)
        deleted: list[Segment] = []
        paths: list[str] = []
        try:
            await self._load_ages(opened, now_ms, slices)
            await self._until_idle(opened)
            deletion = retention.plan(
                opened.segments,
                opened.config,
                start_offset=opened.start_offset,
                high_watermark=opened.high_watermark,
                now_ms=now_ms,
            )
            if deletion.roll:
                opened.roll(now_ms)
            for segment in opened.segments[: deletion.count]:
                await self._until_idle(opened)
                if not self._has(opened) or segment is not opened.segments[0]:
                    break  # The log was deleted or the segment removed during a pause.
                if len(opened.segments) == 1:
                    break
                deleted.append(segment)
                paths += opened.drop_segments(1)
                await slices.pause()
        except (OSError, KafkaStorageError) as error:
            self._note_error(self.directory_of(opened))
            log.error("retention failed partition=%s error=%s", opened.partition, error)
        if deleted:
            if self._has(opened):
                upkeep = self._upkeep_of(opened)
                upkeep.note_roll(opened)  # The directory is to be synced.
                delay_ms = opened.config.file_delete_delay_ms
                upkeep.removals.add(opened.disk, paths, delay_ms, deleted)
            log.info("deleted segments=%d partition=%s", len(deleted), opened.partition)
        return len(deleted)

    async def _load_ages(self, opened: PartitionLog, now_ms: int, slices: Slices) -> None:
        """Load the old segments' largest timestamps in slices, because many take a while."""
        if not opened.config.cleanup_delete or opened.config.retention_ms < 0:
            return
        for segment in list(opened.segments):
            if now_ms - segment.largest_timestamp() <= opened.config.retention_ms:
                return
            await slices.pause()

    # -- inside

    async def _run_flush(self, opened: PartitionLog, flush: Flush) -> None:
        done = self._flushing[opened] = trio.Event()
        since = self._unsynced.pop(opened, None)
        end_offset = opened.end_offset
        try:
            with trio.CancelScope(shield=True):
                await self._in_thread(opened.disk, flush.run)
        except OSError as error:
            if since is not None:
                since = self.clock.now() + RETRY_SECONDS
            self._note_error(self.directory_of(opened))
            raise KafkaStorageError(f"{opened.partition}: {error}") from error
        finally:
            opened.end_flush(flush)
            if since is not None and opened.recovery_point < min(end_offset, opened.end_offset):
                self._unsynced[opened] = since  # Some of the older records are still unsynced.
            if self._has(opened):
                self._time_flush(opened)
            del self._flushing[opened]
            done.set()

    async def _try_flush(
        self, opened: PartitionLog, end_offset: int | None, *, indexes: bool = False
    ) -> bool:
        """Flush a log if it is still here; False if it failed for want of descriptors.

        In that case a retry may work.
        """
        if not self._has(opened):
            return True
        try:
            await self.flush(opened, end_offset, indexes=indexes)
        except KafkaStorageError as error:
            log.error("flush failed partition=%s error=%s", opened.partition, error)
            cause = error.__cause__
            return not isinstance(cause, OSError) or trouble(cause) is not Trouble.NO_DESCRIPTORS
        return True

    async def _close(self, directory: LogDirectory, broker_epoch: int) -> None:
        logs = list(directory.logs.values()) if directory.online else []
        try:
            for start in range(0, len(logs), CLOSED_AT_ONCE):
                await self._close_logs(directory.disk, logs[start : start + CLOSED_AT_ONCE])
            if directory.online:
                await self._in_thread(directory.disk, partial(directory.finish, broker_epoch))
        except (OSError, KafkaStorageError) as error:
            log.error("not closed in order directory=%s error=%s", directory.name, error)
        directory.unlock()

    async def _close_logs(self, disk: Disk, logs: Sequence[PartitionLog]) -> None:
        """Write and sync some logs; their files stay open until that is done."""
        flushes: list[tuple[PartitionLog, Flush]] = []

        def sync_all() -> None:
            for _, flush in flushes:
                flush.run()

        try:
            for opened in logs:
                await self._until_idle(opened)
                if opened in self._leaving:
                    self._retire(opened.partition, names.DELETE_DIRECTORY)
                    continue
                opened.finish()
                flush = opened.start_flush()
                if flush is not None:
                    flushes.append((opened, flush))
                await trio.lowlevel.checkpoint()
            if flushes:
                await self._in_thread(disk, sync_all)
        finally:
            for opened, flush in flushes:
                opened.end_flush(flush)
            for opened in logs:
                opened.release()

    def _has(self, opened: PartitionLog) -> bool:
        """Whether this manager still holds a log; if not, its files may be gone."""
        return self.get(*opened.partition) is opened

    async def _until_idle(self, opened: PartitionLog) -> None:
        """Wait until no thread works on a log."""
        while opened in self._flushing or opened in self._writing:
            works = self._flushing if opened in self._flushing else self._writing
            await works[opened].wait()

    def _choose(self, directory_id: bytes | None) -> LogDirectory:
        """Return the requested directory, else the one with the fewest partitions."""
        online = [d for d in self.directories if d.online]
        chosen = [d for d in online if d.directory_id == directory_id] or online
        if not chosen:
            raise KafkaStorageError("no log directory is online")
        chosen = [directory for directory in chosen if directory.disk.has_room()]
        if not chosen:
            raise KafkaStorageError("no log directory has room")
        return min(chosen, key=lambda directory: len(directory.logs))

    def _retire(self, wanted: TopicPartition, suffix: str) -> None:
        for directory in self.directories:
            opened = directory.logs.get(wanted)
            if opened is None and wanted not in directory.unopened:
                continue
            if opened in self._flushing or opened in self._writing:
                raise KafkaStorageError(f"{wanted}: a thread works on the log of that name")
            marked = directory.retire(wanted, self.unique(), suffix)
            if opened is not None:
                self._forget(directory, opened)
            if suffix != names.DELETE_DIRECTORY:
                continue
            config = LogConfig() if opened is None else opened.config
            segments = () if opened is None else opened.segments
            delay_ms = config.file_delete_delay_ms
            self._upkeep[directory].removals.add(directory.disk, [marked], delay_ms, segments)

    def _forget(self, directory: LogDirectory, opened: PartitionLog) -> None:
        opened.changed = opened.on_behind = opened.on_roll = _ignore
        self._leaving.discard(opened)
        self._upkeep[directory].forget(opened)
        self._unsynced.pop(opened, None)
        self._flush_timers.disarm(opened)

    def _remove_leavings(self, directory: LogDirectory) -> None:
        paths, directory.leavings = directory.leavings, []
        delay_ms = LogConfig().file_delete_delay_ms
        self._upkeep[directory].removals.add(directory.disk, paths, delay_ms)

    async def _in_thread(self, disk: Disk, call: Callable[[], None]) -> None:
        """Make a call that waits for the disk, in a thread.

        A thread cannot close files to free descriptors. If the call finds no descriptor left, this
        method closes files on the event loop and makes the call again.
        """
        in_thread = self.in_thread or partial(self.threads.run, disk)
        try:
            await in_thread(call)
        except OSError as error:
            if trouble(error) is not Trouble.NO_DESCRIPTORS or not disk.shed():
                raise
            await in_thread(call)

    def _note_error(self, directory: LogDirectory) -> bool:
        """Take a directory offline, once, if its disk has failed; return whether it has."""
        if directory.online:
            return False
        if directory.name not in self._offline:
            self._offline.add(directory.name)
            log.error("directory offline name=%s error=%s", directory.name, directory.disk.failed)
            self.on_offline(directory)
        return True
