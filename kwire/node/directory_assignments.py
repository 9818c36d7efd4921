"""Reports to the controller which log directory holds each replica of this broker (KIP-858).

When a directory fails, the controller moves the leaders of all partitions that it knows to be in
that directory. If a replica's log may be in a directory that could not be read, and the controller
does not know the replica's directory, the replica is reported as lost. If such a replica starts
with an empty log later, the broker reports it as unassigned before it reports the directory. The
controller then removes the replica from the in-sync and eligible replicas, because the empty log
may replace one with records.

A broker with a single directory has nothing to report until that directory replaces a lost one: a
replica cannot lead while the metadata places it in a directory that its broker does not have.

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
from kwire.types import DirectoryId, TopicIdPartition, is_directory
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
    delay_s: float = RETRY_S
    """The delay after the next rejection."""


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

    def on_role_changed(self, partition: Partition) -> None:
        """Send the directory of a partition's log if the metadata have a different one."""
        key = partition.topic_id, partition.partition
        is_empty = self._is_lost(key) and partition.log.end_offset == 0
        self.report(key, self.directory_of(partition), is_empty=is_empty)

    def report(self, key: TopicIdPartition, directory: bytes, *, is_empty: bool = False) -> None:
        """Send the directory of a replica if the metadata have a different one."""
        rejected, earlier = self._rejected.pop(key, None), self._pending.get(key)
        is_empty |= rejected is not None and rejected.is_empty
        if earlier is None and not self.is_missing(key, directory):
            return
        if earlier is not None:
            is_empty |= earlier.is_empty  # A move of the log does not change that.
        if earlier is None or (earlier.directory, earlier.is_empty) != (directory, is_empty):
            self._pending[key] = Report(
                directory, is_correction=earlier is not None, is_empty=is_empty
            )
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

    def _is_lost(self, key: TopicIdPartition) -> bool:
        """Return whether a replica was reported as lost, so its log may be in any directory."""
        state = self._state(key)
        return state is not None and state.directory(self.node) == DirectoryId.LOST

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
