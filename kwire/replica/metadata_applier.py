"""Applies published metadata to this broker's partitions.

Rules:

* Metadata is applied in the order it is published, one publication at a time, in slices.
* A new partition's files may be created after CreateTopics was answered: by the first request for
  the partition, or in the background. So a topic of a thousand partitions exists and is usable at
  once.
* A partition whose log lacked room or a descriptor is retried every second in the background.
* Settings change before roles, except that min.insync.replicas is lowered after them: a publication
  may have several changes, and a leader that it replaces must not commit by a later setting.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

import attrs
import trio

from kwire.configs.resource_types import BROKER, TOPIC
from kwire.configs.topic import outdated_settings
from kwire.drive import Slices, give_way
from kwire.log.disk_health import RETRY_SECONDS
from kwire.metrics import BYTES_IN, BYTES_OUT, MESSAGES_IN
from kwire.replica.hosted_partitions import HostedPartitions
from kwire.replica.partition import Partition
from kwire.replica.ports import Delta, Metadata, TopicState
from kwire.types import INTERNAL_TOPICS
from kwire.waits import Signal

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""New partitions of a publication that are created before :meth:`MetadataApplier.apply` returns."""
_FAILED_AT_ONCE: Final = 100
"""Partitions whose creation may fail again before the others have to wait for the next retry."""


@attrs.define(eq=False, repr=False)
class MetadataApplier:
    """Creates, changes and deletes this broker's partitions according to the metadata."""

    partitions: HostedPartitions
    now: Callable[[], float]
    on_brokers_changed: Callable[[Iterable[int]], None] = lambda _: None
    _has_deferred: Signal = attrs.field(factory=Signal)
    _may_defer: bool = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create deferred partitions, one at a time, and retry others, until cancelled.

        While this task is not running, no partition is deferred.
        """
        self._may_defer = True
        self.partitions.on_retry_needed = self._has_deferred.notify
        task_status.started()
        try:
            while True:
                while self.partitions.create_next_deferred():
                    await give_way()
                if not self.partitions.retried_count:
                    await self._has_deferred.wait()
                else:
                    with trio.move_on_after(RETRY_SECONDS) as wait:
                        await self._has_deferred.wait()
                    if wait.cancelled_caught:
                        await self._retry()
        finally:
            self._may_defer = False

    async def _retry(self) -> None:
        """Retry each offline partition that lacked room or a descriptor, unless many fail again."""
        failed_count = 0
        for _ in range(self.partitions.retried_count):
            if not self.partitions.retried_count or failed_count == _FAILED_AT_ONCE:
                return
            failed_count += not self.partitions.retry_next()
            await give_way()

    async def apply(self, delta: Delta) -> None:
        """Apply a publication: deleted topics, changed settings and changed partitions."""
        is_first = self.partitions.image is None
        self.partitions.image = image = delta.after
        slices = Slices(self.now)
        await self._delete_topics(delta.deleted_topics, image, slices)
        await self._warn_of_outdated_settings(delta.configs, image, slices)
        await self._configure(delta.configs, self.partitions.configure, slices)
        created_count = 0
        for topic_id, indexes in delta.partitions.items():
            topic = image.topics.get(topic_id)
            if topic is not None:
                for index in sorted(indexes):
                    if is_first:
                        self.partitions.on_established(topic_id, index)
                    if created_count < _AT_ONCE or not self._defer(topic, index):
                        created_count += self.partitions.find_by_id(topic_id, index) is None
                        self._update(topic, index)
                    await slices.pause()
        await self._configure(delta.configs, self.partitions.roles.lower_minimum, slices)
        if delta.brokers:
            self.on_brokers_changed(delta.brokers)

    async def _delete_topics(
        self, topics: Mapping[bytes, TopicState], image: Metadata, slices: Slices
    ) -> None:
        for topic in topics.values():
            for index in topic.partitions:
                self.partitions.delete(topic, index)
                await slices.pause()
            if topic.name not in image.topic_ids:
                for metric in (MESSAGES_IN, BYTES_IN, BYTES_OUT):
                    self.partitions.metrics.forget(metric, topic.name)

    async def _warn_of_outdated_settings(
        self, resources: Set[tuple[int, str]], image: Metadata, slices: Slices
    ) -> None:
        """Log topic settings that another release accepted and this release does not."""
        for kind, name in sorted(resources):
            if kind == TOPIC:
                for _, why in outdated_settings(image.config(TOPIC, name)):
                    logger.warning("stored topic setting not used topic=%s reason=%s", name, why)
                await slices.pause()

    async def _configure(
        self,
        resources: Set[tuple[int, str]],
        configure: Callable[[Partition], None],
        slices: Slices,
    ) -> None:
        """Apply changed settings of topics, or of brokers, which affect all topics."""
        topics = {name for kind, name in resources if kind == TOPIC}
        is_for_all = any(kind == BROKER for kind, _ in resources)
        if not topics and not is_for_all:
            return
        for partition in list(self.partitions):
            if is_for_all or partition.topic in topics:
                configure(partition)
            await slices.pause()

    def _update(self, topic: TopicState, index: int) -> None:
        state = topic.partitions.get(index)
        if state is None or self.partitions.node not in state.replicas:
            self.partitions.unassign(topic.id, index)
        else:
            self.partitions.update(topic, index, state)

    def _defer(self, topic: TopicState, index: int) -> bool:
        """Defer the creation of a new partition; return whether it is deferred.

        Partitions of internal topics are never deferred.
        """
        partitions = self.partitions
        state = topic.partitions.get(index)
        if partitions.is_deferred(topic.id, index) or (
            self._may_defer
            and state is not None
            and partitions.node in state.replicas
            and topic.name not in INTERNAL_TOPICS
            and partitions.is_new(topic, index)
        ):
            partitions.defer(topic.id, index)
            self._has_deferred.notify()
            return True
        return False
