"""Reports to the controller which log directory holds each replica of this broker (KIP-858).

When a directory fails, the controller moves the leaders of all partitions that it knows to be in
that directory. If a replica's log may be in a directory that could not be read, and the controller
does not know the replica's directory, the replica is reported as lost. A broker with a single
directory has nothing to report until that directory replaces a lost one: a replica cannot lead
while the metadata places it in a directory that its broker does not have.

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

from kwire.errors import KafkaError, raise_for_code
from kwire.raftmeta.metadata.image import MetadataImage
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

REQUEST_PARTITIONS: Final = 2250
"""The most partitions in one request, as many as Apache Kafka's brokers send."""
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 10.0


@attrs.define(eq=False, repr=False)
class Report:
    """The directory of one replica, until the controller has accepted it."""

    directory: bytes
    is_correction: bool = False
    """True if it replaces a report that may have been sent: the metadata may be about to change."""
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
        self.report((partition.topic_id, partition.partition), self.directory_of(partition))

    def report(self, key: TopicIdPartition, directory: bytes) -> None:
        """Send the directory of a replica if the metadata have a different one."""
        self._rejected.pop(key, None)
        earlier = self._pending.get(key)
        if earlier is None and not self.is_missing(key, directory):
            return
        if earlier is None or earlier.directory != directory:
            self._pending[key] = Report(directory, is_correction=earlier is not None)
            self._has_pending.notify()

    def on_log_unreachable(self, topic_id: bytes, index: int) -> None:
        """Report a replica as lost if the controller does not know the directory of its log.

        Otherwise the controller could consider the replica online, and elect it.
        """
        self.report((topic_id, index), DirectoryId.LOST)

    def is_missing(self, key: TopicIdPartition, directory: bytes) -> bool:
        """Return whether the metadata lack the directory of a replica of this broker."""
        image = self.image()
        if level_of(image.features) < DIRECTORIES:
            return False
        topic = image.topics.get(key[0])
        state = None if topic is None else topic.partitions.get(key[1])
        if state is None or self.node not in state.replicas:
            return False
        assigned = state.directory(self.node)
        if directory == DirectoryId.LOST and is_directory(assigned):
            return False  # A heartbeat names the failed directory.
        return assigned != directory

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

    async def _repeat_later(self, key: TopicIdPartition, report: Report) -> None:
        """Send a rejected report again after a delay, unless a newer report has replaced it."""
        delay_s = report.delay_s
        report.delay_s, report.is_correction = min(2 * delay_s, RETRY_MAX_S), False
        await trio.sleep(delay_s)
        if self._rejected.get(key) is report:
            del self._rejected[key]
            self._pending[key] = report
            self._has_pending.notify()

    async def _send(self, reports: Mapping[TopicIdPartition, Report]) -> set[TopicIdPartition]:
        """Send the reports that differ from the metadata; return what the controller rejects."""
        batch = {
            key: report.directory
            for key, report in reports.items()
            if report.is_correction or self.is_missing(key, report.directory)
        }
        rejected: set[TopicIdPartition] = set()
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
                    if answer.error_code:  # Usually deleted or moved away meanwhile.
                        rejected.add((topic.topic_id, answer.partition_index))
                        logger.debug(
                            "directory not assigned partition=%d error=%d",
                            answer.partition_index,
                            answer.error_code,
                        )
        return rejected


def _by_directory(batch: dict[TopicIdPartition, bytes]) -> "list[RequestDirectory]":
    """Return assignments as the request has them, grouped by directory and topic."""
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
