"""The partitions that one broker hosts, and their creation.

A partition without a log is either *deferred*, until the first request for it or its turn in the
background, or *offline*, because its directory failed or had no room. A request for a deferred or
offline partition creates its log from the newest metadata, so a deferred partition is usable at
once. A partition for which there was no room or no file descriptor is also retried in the
background, because no client requests a follower's replica or the partition of a coordinator that
has not loaded. A replica that existed before this start gets no empty log while its log may be in a
directory that could not be read.
"""

import logging
from collections.abc import Callable, Iterator

import attrs

from kwire.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk_health import is_temporary
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.metrics import BYTES_IN, BYTES_OUT, MESSAGES_IN, Metrics
from kwire.replica.partition import Partition, Traffic
from kwire.replica.ports import Metadata, PartitionState, TopicState
from kwire.replica.roles import Roles
from kwire.types import TopicPartition

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class HostedPartitions:
    """The partitions of this broker, by name and by topic id."""

    logs: LogManager
    configs: Callable[[str], LogConfig]
    """Returns a topic's current settings, by topic name."""
    roles: Roles
    metrics: Metrics
    image: Metadata | None = None
    """The newest metadata, which is applied or being applied."""
    on_log_unreachable: Callable[[bytes, int], None] = lambda topic_id, index: None
    """Called with a partition whose log may be in a directory that could not be read."""
    _by_name: dict[tuple[str, int], Partition] = attrs.field(factory=dict)
    _by_id: dict[tuple[bytes, int], Partition] = attrs.field(factory=dict)
    _offline: set[tuple[bytes, int]] = attrs.field(factory=set)
    """Partitions assigned here without a log: their directory failed or had no room."""
    _established: set[tuple[bytes, int]] = attrs.field(factory=set)
    """Replicas that existed before this start and whose logs are not open yet."""
    _deferred: dict[tuple[bytes, int], None] = attrs.field(factory=dict)
    """Partitions still to be created, by the first request or in the background."""
    _retried: dict[tuple[bytes, int], None] = attrs.field(factory=dict)
    """Offline partitions for which there was no room or no descriptor, the next to retry first."""
    on_retry_needed: Callable[[], None] = lambda: None
    """Called when a partition is offline that :meth:`retry_next` may create later."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    @property
    def node(self) -> int:
        return self.roles.node

    @property
    def offline_count(self) -> int:
        """The number of replicas without a log because their directory failed or had no room."""
        return len(self._offline)

    # Lookups. The common case is one dict access; the rest finds the error for a missing partition.

    def find(self, topic: str, index: int) -> Partition | None:
        """Return the partition if it exists; unlike :meth:`get`, do not create it."""
        return self._by_name.get((topic, index))

    def find_by_id(self, topic_id: bytes, index: int) -> Partition | None:
        """Return the partition if it exists; unlike :meth:`get_by_id`, do not create it."""
        return self._by_id.get((topic_id, index))

    def get(self, topic: str, index: int) -> Partition:
        """Return a partition, created if it is deferred or offline; raises a KafkaError."""
        partition = self._by_name.get((topic, index))
        if partition is None:
            topic_id = None if self.image is None else self.image.topic_ids.get(topic)
            partition = None if topic_id is None else self.create_pending(topic_id, index)
            if partition is None:
                raise self._error_for_name(topic, index)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Return a partition, created if it is deferred or offline; raises a KafkaError."""
        partition = self._by_id.get((topic_id, index))
        if partition is None:
            partition = self.create_pending(topic_id, index)
            if partition is None:
                raise self._error_for_id(topic_id, index)
        return partition

    def look_up(self, topic: str | bytes, index: int) -> Partition:
        """Return a partition by its topic's name, or by the topic's id, which is bytes."""
        if isinstance(topic, str):
            partition = self._by_name.get((topic, index))
            return self.get(topic, index) if partition is None else partition
        partition = self._by_id.get((topic, index))
        return self.get_by_id(topic, index) if partition is None else partition

    def get_led(self, topic: str, index: int) -> Partition:
        """Return the partition if this broker leads it; raises NotLeaderOrFollower."""
        partition = self.get(topic, index)
        if partition.leader is None:
            raise NotLeaderOrFollower
        return partition

    def is_offline(self, partition: Partition) -> bool:
        """Return whether the partition was lost with its directory."""
        return (partition.topic_id, partition.partition) in self._offline

    def _error_for_name(
        self, topic: str, index: int
    ) -> UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        image = self.image
        topic_id = None if image is None else image.topic_ids.get(topic)
        if image is None or topic_id is None:
            return UnknownTopicOrPartition()
        return self._error_of_topic(image, topic_id, index)

    def _error_for_id(
        self, topic_id: bytes, index: int
    ) -> UnknownTopicId | UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        image = self.image
        if image is None or image.topics.get(topic_id) is None:
            return UnknownTopicId()
        return self._error_of_topic(image, topic_id, index)

    def _error_of_topic(
        self, image: Metadata, topic_id: bytes, index: int
    ) -> UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        state = image.topics[topic_id].partitions.get(index)
        if state is None:
            return UnknownTopicOrPartition()
        if (topic_id, index) in self._offline:
            return KafkaStorageError()
        return NotLeaderOrFollower()

    # Creation.

    def on_established(self, topic_id: bytes, index: int) -> None:
        """Record a replica that was assigned here before this start, so it may have a log."""
        self._established.add((topic_id, index))

    def is_new(self, topic: TopicState, index: int) -> bool:
        """Return whether neither a partition with this id or name nor its log exists here."""
        return (
            (topic.id, index) not in self._by_id
            and (topic.name, index) not in self._by_name
            and self.logs.get(topic.name, index) is None
        )

    def is_deferred(self, topic_id: bytes, index: int) -> bool:
        return (topic_id, index) in self._deferred

    def defer(self, topic_id: bytes, index: int) -> None:
        """Leave the creation of a partition to the first request for it or the background task."""
        self._deferred[topic_id, index] = None

    def create_next_deferred(self) -> bool:
        """Create the partition that was deferred longest ago; return False if there is none."""
        if not self._deferred:
            return False
        self.create_pending(*next(iter(self._deferred)))
        return True

    def create_pending(self, topic_id: bytes, index: int) -> Partition | None:
        """Create a deferred or offline partition from the newest metadata; None if impossible."""
        key = topic_id, index
        if key not in self._deferred and key not in self._offline:
            return None
        self._deferred.pop(key, None)
        topic = None if self.image is None else self.image.topics.get(topic_id)
        state = None if topic is None else topic.partitions.get(index)
        if topic is None or state is None or self.node not in state.replicas:
            return None
        return self._create_with_role(topic, index, state)

    @property
    def retried_count(self) -> int:
        """The number of offline partitions whose creation is retried."""
        return len(self._retried)

    def retry_next(self) -> bool:
        """Retry the creation of one offline partition; return whether it is no longer pending."""
        key = next(iter(self._retried))
        del self._retried[key]
        self.create_pending(*key)
        return key not in self._retried

    def on_log_deleted(self, partition: TopicPartition) -> None:
        """Create a replica that was reassigned here while a thread still used its old log."""
        topic_id = None if self.image is None else self.image.topic_ids.get(partition.topic)
        if topic_id is not None and (topic_id, partition.partition) in self._offline:
            self.create_pending(topic_id, partition.partition)

    def update(self, topic: TopicState, index: int, state: PartitionState) -> None:
        """Update the role of a partition assigned here, and create the partition if it is new."""
        partition = self._by_id.get((topic.id, index))
        if partition is not None:
            self._update_role(partition, state)
            return
        stale = self._by_name.get((topic.name, index))
        if stale is not None:
            self._remove(stale)
        self._deferred.pop((topic.id, index), None)
        self._create_with_role(topic, index, state)

    def _create_with_role(
        self, topic: TopicState, index: int, state: PartitionState
    ) -> Partition | None:
        partition = self._create(topic, index, state)
        return None if partition is None else self._update_role(partition, state)

    def _create(self, topic: TopicState, index: int, state: PartitionState) -> Partition | None:
        key = topic.id, index
        config, directory_id = self.configs(topic.name), state.directory(self.node)
        is_new = key not in self._established
        try:
            log = self.logs.create(topic.name, topic.id, index, config, directory_id, is_new=is_new)
        except (OSError, KafkaStorageError) as error:
            if key not in self._offline:
                text = "partition has no log topic=%s partition=%d error=%s"
                logger.error(text, topic.name, index, error)
            self._on_offline(key, error)
            if not is_new and self.logs.unread_directories:
                self.on_log_unreachable(*key)
            return None
        self._offline.discard(key)
        self._retried.pop(key, None)
        self._established.discard(key)
        return self.add(topic.name, topic.id, index, log)

    def add(self, topic: str, topic_id: bytes, index: int, log: PartitionLog) -> Partition:
        """Add a partition whose log is open, and return it."""
        cell = self.metrics.cell
        traffic = Traffic(cell(MESSAGES_IN, topic), cell(BYTES_IN, topic), cell(BYTES_OUT, topic))
        partition = Partition(topic, index, topic_id, log, traffic)
        self._by_name[topic, index] = self._by_id[topic_id, index] = partition
        return partition

    def _update_role(self, partition: Partition, state: PartitionState) -> Partition | None:
        """Make this broker the partition's leader or follower; None if its directory fails."""
        try:
            self.roles.update(partition, state)
        except KafkaStorageError as error:
            logger.error(
                "cannot update role topic=%s partition=%d error=%s",
                partition.topic,
                partition.partition,
                error,
            )
            self._drop(partition)
            self._on_offline((partition.topic_id, partition.partition), error)
            return None
        return partition

    def configure(self, partition: Partition) -> None:
        """Apply the current settings of the partition's topic."""
        self.roles.configure(partition, self.configs(partition.topic))

    # Removal.

    def unassign(self, topic_id: bytes, index: int) -> None:
        """Remove a partition that the metadata no longer assigns to this broker."""
        self._forget_pending((topic_id, index))
        partition = self._by_id.get((topic_id, index))
        if partition is not None:
            logger.info("replica unassigned topic=%s partition=%d", partition.topic, index)
            self._remove(partition)

    def delete(self, topic: TopicState, index: int) -> None:
        """Delete a partition of a deleted topic, and its log even if it has no role here."""
        self._forget_pending((topic.id, index))
        partition = self._by_id.get((topic.id, index))
        if partition is not None:
            self._remove(partition)
            return
        log = self.logs.get(topic.name, index)
        if log is not None and log.topic_id == topic.id and log.disk.failed is None:
            self._delete_log(log)

    def _forget_pending(self, key: tuple[bytes, int]) -> None:
        """Forget a partition without a log that this broker should no longer host."""
        self._deferred.pop(key, None)
        self._offline.discard(key)
        self._retried.pop(key, None)
        self._established.discard(key)

    def on_directory_failed(self, directory: LogDirectory) -> None:
        """Take the partitions of a failed log directory offline.

        Requests for them then get KafkaStorageError.
        """
        for partition in list(self._by_name.values()):
            if partition.log.disk is directory.disk:
                self._take_offline(partition)

    def _on_offline(self, key: tuple[bytes, int], error: Exception) -> None:
        self._offline.add(key)
        if is_temporary(error):
            self._retried[key] = None
            self.on_retry_needed()

    def _take_offline(self, partition: Partition) -> None:
        self._drop(partition)
        self._offline.add((partition.topic_id, partition.partition))

    def _remove(self, partition: Partition) -> None:
        self._drop(partition)
        self._delete_log(partition.log)

    def _drop(self, partition: Partition) -> None:
        self._by_name.pop((partition.topic, partition.partition), None)
        self._by_id.pop((partition.topic_id, partition.partition), None)
        self.roles.end(partition)

    def _delete_log(self, log: PartitionLog) -> None:
        try:
            self.logs.delete_soon(log)
        except (OSError, KafkaStorageError):
            logger.exception("cannot delete partition=%s", log.partition)
