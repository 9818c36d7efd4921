"""The moves between log directories, for a broker that rarely has any (KIP-113).

:mod:`kwire.log.directories.moves` is imported with the first move. Until then this module holds the
directories that clients have requested for partitions without a log.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
import trio

from kwire.clock import Clock
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.move_rules import MoveRules
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition, is_directory

if TYPE_CHECKING:
    from kwire.log.directories.moves import LogMoves


@attrs.define(eq=False, repr=False)
class MoveRequests:
    """The entry to the moves of one broker's logs."""

    services: Mapping[Disk, DirectoryService]
    clock: Clock
    unique: Callable[[], bytes]
    rules: MoveRules = attrs.field(factory=MoveRules)
    preferred: dict[TopicPartition, LogDirectory] = attrs.field(init=False, factory=dict)
    """The requested directories of partitions that have no log here yet."""
    _moves: "LogMoves | None" = attrs.field(init=False, default=None)
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)

    def _load(self) -> "LogMoves":
        """Return the moves, imported on the first call."""
        if self._moves is None:
            from kwire.log.directories.moves import LogMoves

            self._moves = LogMoves(self.services, self.clock, self.unique, self.rules)
            if self._nursery is not None:
                self._moves.start(self._nursery)
        return self._moves

    @property
    def _has_any(self) -> bool:
        has_future = any(service.directory.futures for service in self.services.values())
        return self._moves is not None or has_future

    def start(self, nursery: trio.Nursery) -> None:
        """Run the moves in a nursery from now on."""
        self._nursery = nursery
        if self._moves is not None:
            self._moves.start(nursery)

    def stop(self) -> None:
        """Stop starting tasks, because their nursery is about to end."""
        self._nursery = None
        if self._moves is not None:
            self._moves.stop()

    async def finish_switches(self) -> None:
        """Finish the switches that a crash interrupted; needs the opened logs."""
        if any(service.directory.moved_here for service in self.services.values()):
            from kwire.log.directories.moves import finish_switches

            await finish_switches(self.services, self.unique)

    def request(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Move a log to a directory; raises KafkaStorageError if that cannot begin."""
        if self._has_any or log.disk is not directory.disk:
            self._load().request(log, directory)

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """Record in which directory the log of a partition should be created, if it ever is."""
        self.preferred[partition] = directory

    def take_preferred(self, partition: TopicPartition) -> LogDirectory | None:
        """Return the requested directory of a partition whose log is being created, if any."""
        return self.preferred.pop(partition, None)

    def resume(self, log: PartitionLog) -> None:
        """Continue the move of a log that was found with a future replica."""
        if self._has_any:
            self._load().resume(log)

    def recover(
        self, partition: TopicPartition, topic_id: bytes, directory_id: bytes | None
    ) -> PartitionLog | None:
        """Make a future replica current if the metadata assign its directory to it (KIP-858)."""
        for service in self.services.values() if is_directory(directory_id) else ():
            log, directory = service.directory.futures.get(partition), service.directory
            is_assigned = directory.directory_id == directory_id and directory.online
            if log is not None and is_assigned and log.topic_id == topic_id:
                return self._load().recover(log)
        return None

    def cancel(self, partition: TopicPartition) -> None:
        """End the move of a partition that is deleted, and remove its future replica."""
        self.preferred.pop(partition, None)
        if self._has_any:
            self._load().cancel(partition)

    def before(self, on_offline: Callable[[LogDirectory], None]) -> Callable[[LogDirectory], None]:
        """Return ``on_offline``, preceded by the end of the moves from and to the directory."""

        def end_moves(directory: LogDirectory) -> None:
            if self._has_any:
                self._load().on_offline(directory)
            on_offline(directory)

        return end_moves

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """Return the directory that the controller should know as the log's own.

        This is the target of a move from the time when the future replica has caught up.
        """
        target = None if self._moves is None else self._moves.assigned_directory(log)
        return target or self.services[log.disk].directory
