"""The logs of a broker, in all of its log directories.

Rules: only calls that release the interpreter go to threads, and every file that they use is
pinned. A failed directory stays offline until the broker is restarted. Each directory does its own
work on its logs (:mod:`kwire.log.directories.directory_service`).
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.config import CleanerSettings, LogConfig, LogSettings
from kwire.log.directories.directory import LOST_ID, LogDirectory
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.move_requests import MoveRequests
from kwire.log.disk import Disk
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from kwire.types import METADATA_TOPIC, ZERO_UUID, TopicPartition, is_directory

if TYPE_CHECKING:
    from kwire.log.cleaner import LogCleaner
    from kwire.log.directories.cleaning_runner import CleaningRunner

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class LogManager:
    """All logs of one broker."""

    directories: Sequence[LogDirectory]
    clock: Clock
    settings: LogSettings = attrs.field(factory=LogSettings)
    claimed: Sequence[LogDirectory] = ()
    """Directories of this node that hold no partitions: they are locked but not otherwise used."""
    random: Random = attrs.field(factory=SystemRandom)
    """The source of unique names of directories, and of ``segment.jitter.ms``."""
    threads: DiskThreads = attrs.field(factory=DiskThreads)
    make_runner: "Callable[[], CleaningRunner] | None" = None
    """Creates the workers of compaction; None for a broker that does not compact."""
    cleaner_settings: CleanerSettings = attrs.field(factory=CleanerSettings)
    cleaner: "LogCleaner | None" = attrs.field(init=False, default=None)
    """Imported and started with the first compacted log."""
    services: dict[Disk, DirectoryService] = attrs.field(init=False)
    """The work on each directory, by its disk."""
    moves: MoveRequests = attrs.field(init=False)
    """The moves of logs between the directories."""
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _on_deleted: Callable[[TopicPartition], None] = attrs.field(
        default=lambda partition: None, init=False
    )

    def __attrs_post_init__(self) -> None:
        in_thread = self.threads.run_shedding
        self.services = {
            directory.disk: DirectoryService(
                directory, self.clock, self.settings, in_thread, self.random.randrange
            )
            for directory in self.directories
        }
        self.moves = MoveRequests(self.services, self.clock, self.unique)
        if self.make_runner is not None:
            for service in self.services.values():
                service.on_compactable = self._start_cleaner

    def _start_cleaner(self, log: PartitionLog) -> None:
        """Import and start the cleaner, which is notified of changed logs from now on."""
        from kwire.log.cleaner import LogCleaner

        assert self.make_runner is not None
        self.cleaner = LogCleaner(
            self.services, self.clock, self.make_runner, self.cleaner_settings
        )
        self.cleaner.mark(log)
        if self._nursery is not None:
            self._nursery.start_soon(self.cleaner.run)

    def configure_cleaner(self, settings: CleanerSettings) -> None:
        """Apply changed settings of compaction."""
        self.cleaner_settings = settings
        if self.cleaner is not None:
            self.cleaner.configure(settings)

    def unique(self) -> bytes:
        """Return the unique part of a retired directory's name."""
        return self.random.randbytes(16)

    # -- start and stop

    def claim(self) -> None:
        """Declare the calling thread to be the event loop's: only that thread closes idle files."""
        for directory in (*self.directories, *self.claimed):
            directory.disk.claim()

    def abandon(self) -> None:
        """Close and unlock the directories without a clean shutdown; the next start recovers."""
        for directory in self.directories:
            for log in directory.all_logs:
                log.segments.release()
            directory.unlock()
        self._unlock_claimed()

    def subscribe(
        self,
        *,
        on_written: Callable[[PartitionLog], None] | None = None,
        on_offline: Callable[[LogDirectory], None] | None = None,
        on_deleted: Callable[[TopicPartition], None] | None = None,
    ) -> None:
        """Set the functions that are called on three events.

        ``on_written``: queued batches were written. ``on_offline``: a directory has failed, so that
        its logs raise storage errors. ``on_deleted``: a log was deleted that :meth:`delete_soon`
        could not delete at once.
        """
        if on_deleted is not None:
            self._on_deleted = on_deleted
        for service in self.services.values():
            if on_written is not None:
                service.writer.on_written = on_written
            if on_offline is not None:
                service.directory.on_offline = self.moves.before(on_offline)

    async def open(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log, recovering those that were not closed cleanly."""
        for service in self.services.values():
            await service.load(config_of)
        await self.moves.finish_switches()
        await _retire_unwritten(self)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of all directories until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.moves.start(nursery)
            if self.cleaner is not None:
                nursery.start_soon(self.cleaner.run)
            try:
                for service in self.services.values():
                    await nursery.start(service.run)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self.moves.stop()

    async def close(self, broker_epoch: int = -1) -> None:
        """Shut down cleanly: write and sync everything, then the marker.

        Call it after :meth:`run`.
        """
        async with trio.open_nursery() as nursery:
            for service in self.services.values():
                nursery.start_soon(service.close, self.unique, broker_epoch)
        self._unlock_claimed()

    @property
    def previous_epoch(self) -> int:
        """The broker epoch at the last clean shutdown if all directories agree on it, else -1."""
        epochs = {d.previous_epoch if d.online else -1 for d in self.directories}
        return epochs.pop() if len(epochs) == 1 else -1

    def statistics(self) -> Mapping[str, int]:
        """Return the values for metrics."""
        return {
            "logs": sum(len(d.logs) for d in self.directories),
            "offline_directories": sum(not d.online for d in self.directories),
            "full_directories": sum(d.disk.full for d in self.directories),
            "writing_behind": sum(len(s.busy.queues) for s in self.services.values()),
        }

    def _unlock_claimed(self) -> None:
        for directory in self.claimed:
            directory.unlock()

    # -- partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition; None if this broker has none."""
        key = TopicPartition(topic, partition)
        for directory in self.directories:
            log = directory.logs.get(key)
            if log is not None:
                return log
        return None

    def create(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        config: LogConfig,
        directory_id: bytes | None = None,
        *,
        is_new: bool = False,
    ) -> PartitionLog:
        """Return the existing log of a partition, or create one.

        ``is_new``: the replica was assigned to this broker after its start, so it has no log yet.
        Raises KafkaStorageError if no directory can hold it, or if its log may be in a failed
        directory: the one assigned in the metadata (``directory_id``), or any directory that could
        not be read.
        """
        if topic == METADATA_TOPIC:  # An earlier version let clients create a topic of this name.
            raise KafkaStorageError(f"{topic} is the name of the metadata log; delete the topic")
        key = TopicPartition(topic, partition)
        log = self.get(topic, partition)
        if log is not None and not self.services[log.disk].is_of(log, topic_id):
            logger.info("retiring log of older topic partition=%s", key)
            is_id_lost = log.topic_id == LOST_ID
            self._retire(key, names.STRAY_DIRECTORY if is_id_lost else names.DELETE_DIRECTORY)
            log = None
        # Even if a log was opened, because the log that could not be read may be newer.
        has_outdated = _has_outdated(key, topic_id, self.directories)
        if log is None:
            if has_outdated:
                self._retire(key, names.DELETE_DIRECTORY)
            if not is_new:
                _refuse_unread(key, directory_id, self.directories)
            log = self.moves.recover(key, topic_id, directory_id)
        if log is None:
            preferred = self.moves.take_preferred(key)
            directory = _choose_directory(self.directories, directory_id, preferred)
            log = self.services[directory.disk].create(key, topic_id, config)
            self.moves.resume(log)
            return log
        directory = self.services[log.disk].directory
        if not directory.online:
            raise KafkaStorageError(f"{directory.name} is offline")
        if log.topic_id == ZERO_UUID:
            directory.adopt(log, topic_id)
        if log.config != config:
            log.configure(config)
        self.moves.resume(log)
        return log

    @property
    def unread_directories(self) -> Sequence[str]:
        """The directories that failed before all logs were opened, and so may hold more logs."""
        return _unread(self.directories)

    async def delete(self, topic: str, partition: int) -> None:
        """Delete a partition's log; its files are removed after ``file.delete.delay.ms``."""
        log = self.get(topic, partition)
        self.moves.cancel(TopicPartition(topic, partition))
        if log is not None:
            await self.services[log.disk].busy.wait_idle(log)
        self._retire(TopicPartition(topic, partition), names.DELETE_DIRECTORY)

    def delete_soon(self, log: PartitionLog) -> None:
        """Delete a log without waiting: now, or once the thread working on it has ended.

        From now on :meth:`create` does not return the log, even before the thread has ended.
        """
        service = self.services[log.disk]
        self.moves.cancel(log.partition)
        if log not in service.busy:
            self._retire(log.partition, names.DELETE_DIRECTORY)
            return
        service.deleted_logs.add(log)
        if self._nursery is not None:
            self._nursery.start_soon(self._delete_idle, service, log)

    async def _delete_idle(self, service: DirectoryService, log: PartitionLog) -> None:
        await service.busy.wait_idle(log)
        try:
            if service.directory.holds(log):
                self._retire(log.partition, names.DELETE_DIRECTORY)
        except (OSError, KafkaStorageError):
            logger.exception("cannot delete partition=%s", log.partition)
        else:
            self._on_deleted(log.partition)

    def _retire(self, partition: TopicPartition, suffix: str) -> None:
        """Retire a partition from all directories; raises KafkaStorageError if a thread uses it."""
        for service in self.services.values():
            log = service.directory.logs.get(partition)
            if log is None and partition not in service.directory.unopened:
                continue
            if log is not None and log in service.busy:
                raise KafkaStorageError(f"{partition}: a thread is still using the old log")
            service.retire(partition, self.unique(), suffix)

    # -- work on a log, done by the tasks and threads of its directory

    async def flush(
        self, log: PartitionLog, end_offset: int | None = None, *, indexes: bool = False
    ) -> None:
        """Wait until everything that has been written is durable (:meth:`LogFlusher.flush`)."""
        await self.services[log.disk].flusher.flush(log, end_offset, indexes=indexes)

    async def truncate(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Remove everything from ``offset`` onwards (:meth:`LogTruncation.truncate`)."""
        return await self.services[log.disk].truncation.truncate(log, offset, is_wanted)

    async def restart_at(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Continue at ``offset`` without records (:meth:`LogTruncation.restart_at`)."""
        return await self.services[log.disk].truncation.restart_at(log, offset, is_wanted)

    async def retain(self, log: PartitionLog) -> int:
        """Delete segments past retention (:meth:`LogRetention.retain`)."""
        return await self.services[log.disk].retention.retain(log)

    async def keep_starts(
        self, logs: Iterable[PartitionLog]
    ) -> Mapping[PartitionLog, KafkaStorageError]:
        """Wait until the log starts of these logs are on disk, so that deletions are durable.

        Return the logs for which that is not possible, with the reasons.
        """
        by_disk: dict[Disk, list[PartitionLog]] = {}
        for log in logs:
            by_disk.setdefault(log.disk, []).append(log)
        failures: dict[PartitionLog, KafkaStorageError] = {}
        for disk, own in by_disk.items():
            try:
                await self.services[disk].keep_starts(own)
            except KafkaStorageError as error:
                failures |= dict.fromkeys(own, error)
        return failures


async def retire_strays(
    logs: LogManager, keep: Callable[[TopicPartition, bytes], bool]
) -> list[TopicPartition]:
    """Rename the logs that ``keep`` rejects to ``-stray``; return their partitions.

    Their topics are not in the metadata. They are never removed: if the metadata is wrong, the
    records are still there.
    """
    return await _retire_rejected(logs, keep, names.STRAY_DIRECTORY)


async def delete_unassigned(
    logs: LogManager, keep: Callable[[TopicPartition, bytes], bool]
) -> list[TopicPartition]:
    """Delete the logs that ``keep`` rejects; return their partitions.

    Their replicas were moved to other brokers while this broker was down.
    """
    return await _retire_rejected(logs, keep, names.DELETE_DIRECTORY)


async def _retire_rejected(
    logs: LogManager, keep: Callable[[TopicPartition, bytes], bool], suffix: str
) -> list[TopicPartition]:
    """Retire the logs that ``keep`` rejects, in slices."""
    rejected, slices = [], Slices(logs.clock.now)
    for service in logs.services.values():
        directory = service.directory
        held_logs = [*directory.logs.items(), *directory.futures.items()]
        for partition, log in held_logs:
            await slices.pause()
            if directory.holds(log) and not keep(partition, log.topic_id):
                text = "retiring log without assignment partition=%s directory=%s mark=%s"
                logger.warning(text, partition, directory.name, suffix)
                _retire(service, partition, logs.unique(), suffix)
                rejected.append(partition)
    return rejected


def _retire(
    service: DirectoryService, partition: TopicPartition, unique: bytes, suffix: str
) -> None:
    """Retire a log during startup; an error is logged, and at worst fails its log directory."""
    try:
        service.retire(partition, unique, suffix)
    except OSError as error:
        service.directory.note_failure()
        logger.error("cannot retire partition=%s error=%s", partition, error)


async def _retire_unwritten(logs: LogManager) -> None:
    """Retire empty logs of partitions whose records are in another directory.

    The log's creation here may have failed before it was created in the other directory.
    """
    slices = Slices(logs.clock.now)
    for partition in find_duplicates(logs.directories):
        await slices.pause()
        holders = [s for s in logs.services.values() if partition in s.directory.logs]
        written = [s for s in holders if s.directory.logs[partition].end_offset]
        for service in holders:
            if service in (written or holders[-1:]):
                continue
            text = "retiring empty log of a failed creation partition=%s directory=%s"
            logger.warning(text, partition, service.directory.name)
            _retire(service, partition, logs.unique(), names.DELETE_DIRECTORY)


async def retire_outdated(
    logs: LogManager, directory_of: Callable[[TopicPartition], bytes | None]
) -> list[TopicPartition]:
    """Rename outdated logs of partitions in several directories to ``-stray``.

    While a directory was missing, its replicas began anew in another one, where the metadata have
    them now. ``directory_of`` returns the id of that directory. If another log may have newer
    records, all logs stay. Return the partitions.
    """
    retired, slices = [], Slices(logs.clock.now)
    for partition in find_duplicates(logs.directories):
        await slices.pause()
        holders = [s for s in logs.services.values() if partition in s.directory.logs]
        place = directory_of(partition)
        current = next((s for s in holders if s.directory.directory_id == place), None)
        newest = max(_progress(service, partition) for service in holders)
        if current is None or _progress(current, partition) < newest:
            continue
        for service in holders:
            if service is not current:
                text = "retiring outdated log partition=%s directory=%s current=%s"
                logger.warning(text, partition, service.directory.name, current.directory.name)
                _retire(service, partition, logs.unique(), names.STRAY_DIRECTORY)
        retired.append(partition)
    return retired


def _progress(service: DirectoryService, partition: TopicPartition) -> tuple[int, int]:
    """Return the last leader epoch and the end offset of a log: a newer log has larger ones."""
    log = service.directory.logs[partition]
    return (-1 if log.epochs.latest is None else log.epochs.latest), log.end_offset


def find_duplicates(directories: Sequence[LogDirectory]) -> list[TopicPartition]:
    """Return the partitions that are in several directories."""
    others, duplicates = directories[1:], set[TopicPartition]()
    partitions = set(directories[0].logs) if others else set()
    for directory in others:
        duplicates |= partitions.intersection(directory.logs)
        partitions.update(directory.logs)
    return sorted(duplicates)


def _unread(directories: Sequence[LogDirectory]) -> list[str]:
    return [d.name for d in directories if not d.online and not d.is_loaded]


def _has_outdated(
    partition: TopicPartition, topic_id: bytes, directories: Sequence[LogDirectory]
) -> bool:
    """Return whether an unreadable log of an older topic has the partition's name.

    Raises KafkaStorageError if the partition has an unreadable log of this topic.
    """
    is_outdated = False
    for directory in directories:
        unopened = directory.unopened.get(partition)
        if unopened is not None:
            if unopened.topic_id in (topic_id, ZERO_UUID):
                raise KafkaStorageError(f"{partition} in {directory.name} could not be opened")
            is_outdated = True
    return is_outdated


def _refuse_unread(
    partition: TopicPartition, directory_id: bytes | None, directories: Sequence[LogDirectory]
) -> None:
    """Raise KafkaStorageError if a partition's log may be in a directory that was not read.

    Otherwise a new, empty log in another directory could be elected, and its followers would then
    remove the records that the unread log holds.
    """
    unread, online = _unread(directories), [d for d in directories if d.online]
    if unread and not any(d.directory_id == directory_id for d in online):
        raise KafkaStorageError(f"{partition} may be in {', '.join(unread)}, which is offline")


def _choose_directory(
    directories: Sequence[LogDirectory],
    directory_id: bytes | None,
    preferred: LogDirectory | None = None,
) -> LogDirectory:
    """Return the assigned directory, or else the online one with the fewest partitions.

    ``preferred``: the directory that a client has requested, which takes precedence over the
    assignment.
    """
    online = [d for d in directories if d.online]
    candidates = [d for d in online if d is preferred]
    candidates = candidates or [d for d in online if d.directory_id == directory_id]
    if not candidates:
        if is_directory(directory_id) and len(online) < len(directories):
            raise KafkaStorageError("its log directory is offline")
        candidates = online
    if not candidates:
        raise KafkaStorageError("no log directory is online")
    candidates = [d for d in candidates if d.disk.has_room()]
    if not candidates:
        no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise KafkaStorageError("no log directory has room") from no_room
    return min(candidates, key=lambda directory: len(directory.logs))
