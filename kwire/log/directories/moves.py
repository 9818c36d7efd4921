"""The moves of logs between the log directories of a broker (KIP-113, KIP-858).

Rules, as in Kafka:

* A log has at most one future replica. A request for another directory replaces the move; a request
  for the log's own directory ends it.
* No move begins while a log directory is offline: the partition may have a future replica there.
* ``num.replica.alter.log.dirs.threads`` moves copy at the same time. A future replica that has
  caught up is announced to the controller before it becomes the current replica.
* A start resumes the moves whose future replicas it finds. If the current replica is gone, the
  future replica becomes the current one, provided that the metadata assign its directory.
* If the target directory fails, the current replica stays in use. If the source directory fails,
  the future replica stays where it is.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.errors import KafkaError, KafkaStorageError
from kwire.log.directories import future_logs
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.log_move import LogMove, MoveEnded
from kwire.log.directories.move_rules import MoveRules
from kwire.log.disk import Disk
from kwire.log.error_mapping import storage_error
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""The delay before a move continues after a disk error, such as a full disk."""
REPORT_S: Final = 60.0


class _NoThrottle:
    """A limit that is never exceeded."""

    def record(self, size_bytes: int, now: float) -> None: ...

    def is_exceeded(self, now: float) -> bool:
        return False

    def pause_s(self, now: float) -> float:
        return 0.0


@attrs.define(eq=False, repr=False)
class RunningMove:
    """A move, its task, and what is known about its end."""

    move: LogMove
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_assigned: bool = False
    """True from the request that assigns the replica to the target directory."""
    is_unwanted: bool = False
    """True if the future replica has to be removed when the task ends."""
    reported: str = ""
    """The error that was last logged, at :attr:`reported_at`."""
    reported_at: float = 0.0


@attrs.define(eq=False, repr=False)
class LogMoves:
    """The moves of one broker's logs."""

    services: Mapping[Disk, DirectoryService]
    clock: Clock
    unique: Callable[[], bytes]
    rules: MoveRules
    _moves: dict[TopicPartition, RunningMove] = attrs.field(init=False, factory=dict)
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    _copies: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        count = self.rules.thread_count or len(self.services)
        self._copies = trio.CapacityLimiter(max(count, 1))

    def start(self, nursery: trio.Nursery) -> None:
        """Start the moves that were requested so far; others start with their requests."""
        self._nursery = nursery
        for running in self._moves.values():
            nursery.start_soon(self._run, running)

    def stop(self) -> None:
        """Start no more tasks, because the nursery ends."""
        self._nursery = None

    # -- requests

    def request(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Move a log to a directory; raises KafkaStorageError if that cannot begin."""
        partition, source = log.partition, self.services[log.disk]
        target = self.services[directory.disk]
        if source is target:
            self.cancel(partition)
            return
        if partition in directory.futures and partition in self._moves:
            return
        self.cancel(partition, keep=directory)
        if not all(service.directory.online for service in self.services.values()):
            raise KafkaStorageError("a log directory is offline")
        future = directory.futures.get(partition)
        if future is None:
            first = log.segments[0].base_offset
            future = future_logs.create(
                target, partition, log.topic_id, log.config, self.unique(), first
            )
        self._begin(log, future)

    def resume(self, log: PartitionLog) -> None:
        """Continue the move of a log that was found with a future replica."""
        partition = log.partition
        if partition in self._moves:
            return
        for service in self.services.values():
            future = service.directory.futures.get(partition)
            if future is None:
                continue
            is_usable = future.topic_id == log.topic_id and future.disk is not log.disk
            if is_usable and partition not in self._moves:
                logger.info("resuming move partition=%s to=%s", partition, service.directory.name)
                self._begin(log, future)
            else:
                self._remove_idle(service, future)

    def recover(self, future: PartitionLog) -> PartitionLog:
        """Make a future replica whose current replica is gone the current one; return its log."""
        service = self.services[future.disk]
        logger.info("recovering abandoned future replica partition=%s", future.partition)
        try:
            future_logs.promote(service, future)
        except OSError as error:
            raise storage_error(future.changes, error) from error
        return future

    def cancel(self, partition: TopicPartition, *, keep: LogDirectory | None = None) -> None:
        """End the move of a log, if there is one, and remove its future replica.

        ``keep``: the directory whose future replica stays.
        """
        running = self._moves.pop(partition, None)
        if running is not None:
            running.is_unwanted = True
            future_logs.forget(running.move.target, running.move.future)
            running.scope.cancel()
            if self._nursery is None:
                future_logs.remove(running.move.target, running.move.future, self.unique())
        for service in self.services.values():
            future = service.directory.futures.get(partition)
            if future is not None and service.directory is not keep:
                self._remove_idle(service, future)

    def on_offline(self, directory: LogDirectory) -> None:
        """End the moves from and to a directory that has failed."""
        for running in list(self._moves.values()):
            move = running.move
            if directory in (move.source.directory, move.target.directory):
                running.scope.cancel()
        for future in list(directory.futures.values()):
            future_logs.forget(self.services[directory.disk], future)

    def assigned_directory(self, log: PartitionLog) -> LogDirectory | None:
        """Return the directory that the controller is told in place of the log's own, if any."""
        running = self._moves.get(log.partition)
        is_assigned = running is not None and running.is_assigned and running.move.log is log
        return running.move.target.directory if running is not None and is_assigned else None

    # -- the task of a move

    def _begin(self, log: PartitionLog, future: PartitionLog) -> None:
        source, target = self.services[log.disk], self.services[future.disk]
        move = LogMove(
            log,
            future,
            source,
            target,
            self.rules.throttle or _NoThrottle(),
            self.clock,
            self.unique,
            self._on_moved,
        )
        running = self._moves[log.partition] = RunningMove(move)
        logger.info(
            "moving partition=%s from=%s to=%s offset=%d end_offset=%d",
            log.partition,
            source.directory.name,
            target.directory.name,
            future.end_offset,
            log.end_offset,
        )
        if self._nursery is not None:
            self._nursery.start_soon(self._run, running)

    def _on_moved(self, log: PartitionLog, future: PartitionLog) -> None:
        del self._moves[log.partition]
        self.rules.on_moved(log, future)

    async def _run(self, running: RunningMove) -> None:
        move = running.move
        log, partition = move.log, move.log.partition
        is_done = False
        try:
            with running.scope, move.source.busy.cleaning.pause(log):
                # Once a swap of segments has begun, tombstones of copied values may be gone.
                await move.source.busy.wait_cut(log)
                is_done = await self._finish(running)
        finally:
            if self._moves.get(partition) is running:
                del self._moves[partition]
            if running.is_assigned and not is_done:
                self.rules.on_given_up(log)
            if running.is_unwanted:
                await self._remove_later(move.target, move.future)
        if is_done:
            logger.info("moved partition=%s to=%s", partition, move.target.directory.name)

    def _remove_idle(self, service: DirectoryService, future: PartitionLog) -> None:
        """Remove a future replica that has no move, as soon as no thread works on it."""
        if self._nursery is None or future not in service.busy:
            future_logs.remove(service, future, self.unique())
        else:
            future_logs.forget(service, future)
            self._nursery.start_soon(self._remove_later, service, future)

    async def _remove_later(self, service: DirectoryService, future: PartitionLog) -> None:
        with trio.CancelScope(shield=True):
            await service.busy.wait_idle(future)
        future_logs.remove(service, future, self.unique())

    async def _finish(self, running: RunningMove) -> bool:
        """Copy and switch, with pauses after errors; return whether the log was moved."""
        move, is_begun = running.move, False
        while move.is_possible:
            try:
                async with self._copies:
                    if not is_begun:
                        await move.begin()
                        is_begun = True
                    await move.copy()
                if not running.is_assigned:
                    running.is_assigned = True
                    await self.rules.wait_assigned(move.log, move.target.directory)
                async with self._copies:
                    await move.copy()
                    if await move.switch():
                        return True
            except MoveEnded:
                break
            except (KafkaStorageError, OSError) as error:
                self._report_delay(running, error)
                await trio.sleep(RETRY_S)
            except (KafkaError, ValueError):
                logger.exception("move failed partition=%s", move.log.partition)
                break
        return False

    def _report_delay(self, running: RunningMove, error: Exception) -> None:
        """Log an error that delays a move, but the same error only once every :data:`REPORT_S`."""
        text, now = str(error), self.clock.now()
        if text != running.reported or now - running.reported_at >= REPORT_S:
            running.reported, running.reported_at = text, now
            partition = running.move.log.partition
            logger.error("move delayed partition=%s error=%s", partition, text)


async def finish_switches(
    services: Mapping[Disk, DirectoryService], unique: Callable[[], bytes]
) -> None:
    """Remove the old directories of logs whose switch was interrupted by a crash.

    Without this, a start would find such a partition in two directories.
    """
    are_all_online = all(service.directory.online for service in services.values())
    for service in services.values():
        directory = service.directory
        for partition in directory.moved_here:
            log = directory.logs.get(partition)
            if log is None:
                continue
            for source in services.values():
                if source is not service and future_logs.is_moved_from(log, source.directory):
                    await _remove_outdated(source, partition, unique())
            if are_all_online:
                future_logs.unmark_moved(log)
        directory.moved_here.clear()


async def _remove_outdated(
    source: DirectoryService, partition: TopicPartition, unique: bytes
) -> None:
    directory = source.directory
    if partition in directory.logs or partition in directory.unopened:
        logger.info("finishing move partition=%s from=%s", partition, directory.name)
        source.retire(partition, unique, names.DELETE_DIRECTORY)
        await source.in_thread(directory.disk, directory.disk.sync_directory)
