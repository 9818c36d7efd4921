"""The groups of one node; their modules are loaded on first use.

First use is when the node leads a partition of `__consumer_offsets`, or is asked about one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from kwire import metrics as m
from kwire.configs.resource_types import GROUP
from kwire.types import CONSUMER_OFFSETS, random_uuid, uuid_hex

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import trio

    from kwire.coordinator.ports import LedPartition
    from kwire.group.coordinator import GroupCoordinator
    from kwire.group.shard import GroupShard
    from kwire.group.share.coordinator import SharePorts
    from kwire.node.core import Core
    from kwire.node.group_topics import ImageTopics
    from kwire.replica.coordinator_log import CoordinatorLog
    from kwire.replica.markers import WaitCommitted
    from kwire.replica.transaction_ports import TransactionMarker
    from kwire.share.persister import Persister

_REBALANCES: Final = {
    "classic": m.CLASSIC_REBALANCES,
    "consumer": m.CONSUMER_REBALANCES,
    "share": m.SHARE_REBALANCES,
    "streams": m.STREAMS_REBALANCES,
}


@attrs.define(eq=False, repr=False)
class NodeGroups:
    """One node's group coordinator, which is created on first use."""

    core: Core
    log: CoordinatorLog
    persister: Callable[[], Persister]
    """Returns this node's persister of share partitions, which is created on first use."""
    nursery: trio.Nursery | None = None
    """The nursery of the coordinator's task; set before the node gets a role."""
    _coordinator: GroupCoordinator | None = None
    _counts: dict[bytes, int] = attrs.field(factory=dict)
    _image_topics: ImageTopics | None = None
    _knows_topics: bool = False
    """True once the metadata includes all topics created before this node started."""

    def on_role_changed(self, partition: LedPartition) -> None:
        """Load or drop a partition whose role was gained or lost; called by the replica layer."""
        if partition.topic == CONSUMER_OFFSETS:
            self.coordinator().on_role_changed(partition)

    def on_topics_deleted(self, names: Mapping[bytes, str]) -> None:
        """Remove the offsets of deleted topics; ``names`` maps the topics' ids to their names."""
        if self._coordinator is not None and self._knows_topics:
            self._coordinator.on_topics_deleted(names)

    def on_metadata_caught_up(self) -> None:
        """Remove the offsets of topics that no longer exist."""
        self._knows_topics = True
        if self._coordinator is not None:
            self._coordinator.on_metadata_caught_up()

    def end_transaction(self, index: int, marker: TransactionMarker) -> WaitCommitted:
        """Append and apply a transaction marker in one partition; raises KafkaError."""
        return self.coordinator().service.end_transaction(index, marker)

    def machines(self) -> list[GroupShard]:
        """Return the machines of the loaded partitions that this node leads."""
        return [] if self._coordinator is None else self._coordinator.service.machines()

    def resign_all(self) -> None:
        """Drop all partitions before a shutdown, failing the requests that still wait."""
        if self._coordinator is not None:
            self._coordinator.service.resign_all()

    def coordinator(self) -> GroupCoordinator:
        """Return the coordinator; the first call creates it and starts its task."""
        if self._coordinator is None:
            self._coordinator = self._make()
            assert self.nursery is not None
            self.nursery.start_soon(self._coordinator.service.run)
        return self._coordinator

    def _make(self) -> GroupCoordinator:
        from kwire.group.coordinator import GroupCoordinator

        core = self.core
        return GroupCoordinator.build(
            self.log,
            core.clock,
            config=lambda: core.current.config,
            partitions=self._partition_count,
            new_id=lambda: uuid_hex(random_uuid(core.random.randbytes)),
            topic_ids=lambda: core.publisher.image.topic_ids if self._knows_topics else None,
            topics=self._topics,
            share_ports=self._share_ports,
            spawn=self._spawn,
            overrides=lambda group_id: core.publisher.image.config(GROUP, group_id),
            on_rebalance=self._count_rebalance,
        )

    def _count_rebalance(self, protocol: str) -> None:
        self.core.metrics.cell(_REBALANCES[protocol]).value += 1

    def _share_ports(self) -> SharePorts:
        """Return the parts of the node that share groups use; called when a group exists."""
        from kwire.group.share.coordinator import SharePorts
        from kwire.node.end_offsets import EndOffsets
        from kwire.node.other_brokers import OtherBrokers

        config, publisher = self.core.config, self.core.publisher
        others = OtherBrokers(config.node_id, config.inter_broker_listener, lambda: publisher.image)
        publisher.subscribe(lambda image, _: others.on_image_published(image))
        pool = self.core.broker_pool(config.request_timeout_ms / 1000)
        return SharePorts(
            persister=self.persister,
            end_offsets=EndOffsets(self.log.replicas, others, pool).ask,
            spawn=self._spawn,
        )

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(task)

    def _topics(self) -> ImageTopics:
        """Return the topics of the newest metadata."""
        image = self.core.publisher.image
        if self._image_topics is None:
            from kwire.node.group_topics import ImageTopics

            self._image_topics = ImageTopics(image, {}, image.applied.offset)
        elif self._image_topics.image is not image:
            self._image_topics = self._image_topics.next(image)
        return self._image_topics

    def _partition_count(self) -> int:
        """Return the partition count of `__consumer_offsets`, as it was on the first call.

        If the topic grows, groups keep their partition until a restart, as in Kafka.
        """
        topic = self.core.publisher.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return self.core.current.config.offsets_topic_num_partitions
        return self._counts.setdefault(topic.id, len(topic.partitions))
