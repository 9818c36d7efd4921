"""Reports to the controller which log directory holds each replica of this broker (KIP-858).

When a directory fails, the controller moves the leaders of all partitions that it knows to be in
that directory. If a replica's log may be in a directory that could not be read, and the controller
does not know the replica's directory, the replica is reported as lost. If such a replica starts
with an empty log later, the broker reports it as unassigned before it reports the directory. The
controller then removes the replica from the in-sync and eligible replicas, because the empty log
may replace one with records. The reverse holds for a log with records whose replica the metadata
have in a directory that the broker lacks, because an operator moved its files or the target of a
move has failed: it is reported as lost first, so that its directory counts as a place of the same
log.

A broker with a single directory has nothing to report until that directory replaces a lost one: a
replica cannot lead while the metadata places it in a directory that its broker does not have. While
the partition has no leader, the controller leaves the replica there, because that directory may
come back.

Rules: only differences from the metadata are sent, many partitions per request and one request at a
time. An unanswered request is resent, with a growing delay. So is a partition that the controller
rejects, as long as the metadata have a different directory for it; other partitions do not wait for
it. An idle broker sends nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.drive import give_way
from kwire.errors import KafkaError, raise_for_code
from kwire.raftmeta.metadata.image import MetadataImage, PartitionImage
from kwire.raftmeta.storage.levels import DIRECTORIES, level_of
from kwire.replica.partition import Partition
from kwire.types import NO_LEADER, DirectoryId, TopicIdPartition, is_directory, uuid_text
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.codec.messages.assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
    )

    RequestDirectory = AssignReplicasToDirsRequest.DirectoryData
    RequestTopic = RequestDirectory.TopicData

logger = logging.getLogger(__name__)

REQUEST_PARTITIONS: Final = 500
"""The most partitions in one request, whose answers are applied in one turn of the event loop.

Apache Kafka's brokers send up to 2,250.
"""
LOGGED_PARTITIONS: Final = 10
"""The most partitions that a line in the log names."""
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 10.0


@attrs.define(eq=False, repr=False)
class Report:
    """The directory of one replica, until the controller has accepted it."""

    directory: bytes
    is_correction: bool = False
    """True if it replaces a report that may have been sent: the metadata may be about to change."""
    is_empty: bool = False
    """True if the log is empty, and may replace a lost one."""
    has_records: bool = False
    """True if the log has records, so it does not replace one in a directory that is missing."""
    delay_s: float = RETRY_S
    """The delay after the next rejection."""

    def says_same_as(self, earlier: "Report") -> bool:
        """Return whether an earlier report, which was not answered yet, need not be replaced."""
        names = ("directory", "is_empty", "has_records")
        return all(getattr(self, name) == getattr(earlier, name) for name in names)


@attrs.define(eq=False, repr=False)
class DirectoryAssignments:
    """One broker's directory assignments that the controller lacks."""

    node: int
    image: Callable[[], MetadataImage]
    directory_of: Callable[[Partition], bytes]
    """Returns the id of the directory that holds a partition's log."""
    broker_epoch: Callable[[], int]
    assign: "Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]]"
    """Sends a request to the active controller; raises KafkaError."""
    _pending: dict[TopicIdPartition, Report] = attrs.field(factory=dict)
    """The reports to send, or sent and unanswered."""
    _rejected: dict[TopicIdPartition, Report] = attrs.field(factory=dict)
    """The rejected reports that wait to be sent again."""
    _has_pending: Signal = attrs.field(factory=Signal)
    _missing: dict[bytes, bool] = attrs.field(factory=dict)
    """The missing directories without which partitions have no leader; True if it was logged."""

    def on_role_changed(self, partition: Partition) -> None:
        """Send the directory of a partition's log if the metadata have a different one."""
        key = partition.topic_id, partition.partition
        has_records, directory = partition.log.end_offset > 0, self.directory_of(partition)
        if not has_records:
            self._note_missing(key, directory)
        is_empty = self._is_lost(key) and not has_records
        self.report(key, directory, is_empty=is_empty, has_records=has_records)

    def report(
        self,
        key: TopicIdPartition,
        directory: bytes,
        *,
        is_empty: bool = False,
        has_records: bool = False,
    ) -> None:
        """Send the directory of a replica if the metadata have a different one."""
        rejected, earlier = self._rejected.pop(key, None), self._pending.get(key)
        is_empty |= rejected is not None and rejected.is_empty
        if earlier is None and not self.is_missing(key, directory):
            return
        if earlier is not None:
            is_empty |= earlier.is_empty  # A move of the log does not change that.
            has_records &= earlier.has_records  # It may have copied records since.
        report = Report(
            directory,
            is_correction=earlier is not None,
            is_empty=is_empty,
            has_records=has_records,
        )
        if earlier is None or not report.says_same_as(earlier):
            self._pending[key] = report
            self._has_pending.notify()

    def on_log_unreachable(self, topic_id: bytes, index: int) -> None:
        """Report a replica as lost if the controller does not know the directory of its log.

        Otherwise the controller could consider the replica online, and elect it.
        """
        self.report((topic_id, index), DirectoryId.LOST)

    def is_missing(self, key: TopicIdPartition, directory: bytes) -> bool:
        """Return whether the metadata lack the directory of a replica of this broker."""
        if level_of(self.image().features) < DIRECTORIES:
            return False
        state = self._state(key)
        if state is None or self.node not in state.replicas:
            return False
        assigned = state.directory(self.node)
        if directory == DirectoryId.LOST and is_directory(assigned):
            return False  # A heartbeat names the failed directory.
        return assigned != directory

    def _note_missing(self, key: TopicIdPartition, directory: bytes) -> None:
        """Note the directory that a replica misses, if its partition waits for that directory."""
        state = self._state(key)
        if state is None or not self._waits_for_log(state):
            return
        assigned = state.directory(self.node)
        if assigned is not None and assigned != directory:
            self._missing.setdefault(assigned, False)

    def _waits_for_log(self, state: PartitionImage) -> bool:
        """Return whether a partition has no leader, although this broker's replica may lead it."""
        candidates = (*state.isr, *state.elr, *state.last_known_elr)
        assigned = state.directory(self.node)
        is_named = assigned == DirectoryId.LOST or is_directory(assigned)
        return state.leader == NO_LEADER and self.node in candidates and is_named

    async def _log_missing(self) -> None:
        """Log, once for each missing directory, the partitions that wait for it."""
        for directory in [each for each, is_logged in self._missing.items() if not is_logged]:
            waiting: list[str] = []
            for topic in self.image().topics.values():
                waiting += [
                    f"{topic.name}-{index}"
                    for index, state in topic.partitions.items()
                    if state.directory(self.node) == directory and self._waits_for_log(state)
                ]
                await give_way()
            if not waiting:
                del self._missing[directory]
                continue
            self._missing[directory] = True
            rest = len(waiting) - LOGGED_PARTITIONS
            logger.error(
                "log directory missing id=%s; without it, partitions have no leader: %s%s; restart "
                "with the directory in log.dirs and its disk mounted or, if the records are lost, "
                "elect leaders with `kafka-leader-election.sh --election-type unclean`",
                "unknown" if directory == DirectoryId.LOST else uuid_text(directory),
                ", ".join(waiting[:LOGGED_PARTITIONS]),
                f" and {rest} more" if rest > 0 else "",
            )

    def _is_lost(self, key: TopicIdPartition) -> bool:
        """Return whether a replica was reported as lost, so its log may be in any directory."""
        state = self._state(key)
        return state is not None and state.directory(self.node) == DirectoryId.LOST

    def _lacks_assigned(self, key: TopicIdPartition) -> bool:
        """Return whether the metadata have a replica in a directory that this broker lacks."""
        state, own = self._state(key), self.image().brokers.get(self.node)
        assigned = None if state is None else state.directory(self.node)
        if assigned is None or not is_directory(assigned):
            return False
        return own is not None and not own.has_online(assigned)

    def _state(self, key: TopicIdPartition) -> PartitionImage | None:
        topic = self.image().topics.get(key[0])
        return None if topic is None else topic.partitions.get(key[1])

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send assignments until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            delay_s = RETRY_S
            while True:
                while not self._pending:
                    await self._has_pending.wait()
                await self._log_missing()
                batch = dict(islice(self._pending.items(), REQUEST_PARTITIONS))
                try:
                    rejected = await self._send(batch)
                except KafkaError as error:
                    logger.debug("AssignReplicasToDirs failed error=%r", error)
                    await trio.sleep(delay_s)
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
                    continue
                delay_s = RETRY_S
                for key, report in batch.items():
                    if self._pending.get(key) is report:
                        del self._pending[key]
                        if key in rejected:
                            self._rejected[key] = report
                            nursery.start_soon(self._repeat_later, key, report)
                await give_way()  # The next request may be as large as this one.

    async def _repeat_later(self, key: TopicIdPartition, report: Report) -> None:
        """Resend a rejected report after a delay, unless a newer report has replaced it."""
        delay_s = report.delay_s
        report.delay_s, report.is_correction = min(2 * delay_s, RETRY_MAX_S), False
        await trio.sleep(delay_s)
        if self._rejected.get(key) is report:
            del self._rejected[key]
            self._pending[key] = report
            self._has_pending.notify()

    async def _send(self, reports: Mapping[TopicIdPartition, Report]) -> set[TopicIdPartition]:
        """Send the reports that differ from the metadata; return those to resend later."""
        batch = {
            key: report.directory
            for key, report in reports.items()
            if report.is_correction or self.is_missing(key, report.directory)
        }
        rejected = {key for key in batch if reports[key].is_empty and self._is_lost(key)}
        batch |= dict.fromkeys(rejected, DirectoryId.UNASSIGNED)
        intact = {key for key in batch if reports[key].has_records and self._lacks_assigned(key)}
        batch |= dict.fromkeys(intact, DirectoryId.LOST)
        rejected |= intact
        if not batch:
            return rejected
        from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest

        request = AssignReplicasToDirsRequest(
            broker_id=self.node, broker_epoch=self.broker_epoch(), directories=_by_directory(batch)
        )
        response = await self.assign(request)
        raise_for_code(response.error_code)
        for directory in response.directories:
            for topic in directory.topics:
                for answer in topic.partitions:
                    # Usually the partition was deleted or moved away meanwhile.
                    if answer.error_code:
                        rejected.add((topic.topic_id, answer.partition_index))
                        logger.debug(
                            "directory not assigned partition=%d error=%d",
                            answer.partition_index,
                            answer.error_code,
                        )
        return rejected


def _by_directory(batch: dict[TopicIdPartition, bytes]) -> "list[RequestDirectory]":
    """Return assignments in the structure of the request: grouped by directory and topic."""
    from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest

    directory_structure = AssignReplicasToDirsRequest.DirectoryData
    topic_structure = directory_structure.TopicData
    directories: dict[bytes, RequestDirectory] = {}
    topics: dict[tuple[bytes, bytes], RequestTopic] = {}
    for (topic_id, index), directory_id in batch.items():
        directory = directories.setdefault(directory_id, directory_structure(id=directory_id))
        topic = topics.get((directory_id, topic_id))
        if topic is None:
            topic = topics[directory_id, topic_id] = topic_structure(topic_id=topic_id)
            directory.topics.append(topic)
        topic.partitions.append(topic_structure.PartitionData(partition_index=index))
    return list(directories.values())
