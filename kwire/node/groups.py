"""The groups of one node; their modules are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from kwire import metrics as m
from kwire.configs.resource_types import GROUP
from kwire.node.coordinators import NodeCoordinator
from kwire.types import CONSUMER_OFFSETS, random_uuid, uuid_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kwire.configs.broker import BrokerConfig
    from kwire.group.coordinator import GroupCoordinator
    from kwire.group.shard import GroupShard
    from kwire.group.share.coordinator import SharePorts
    from kwire.node.group_topics import ImageTopics
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
class NodeGroups(NodeCoordinator["GroupCoordinator"]):
    """One node's group coordinator."""

    topic = CONSUMER_OFFSETS
    persister: Callable[[], Persister]
    """Returns this node's persister of share partitions, which is created on first use."""
    _image_topics: ImageTopics | None = None
    _knows_topics: bool = False
    """True once the metadata includes all topics created before this node started."""

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

    def _start(self) -> GroupCoordinator:
        from kwire.group.coordinator import GroupCoordinator

        core = self.core
        coordinator = GroupCoordinator.build(
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
        self._spawn(coordinator.service.run)
        return coordinator

    def _new_topic_count(self, config: BrokerConfig) -> int:
        return config.offsets_topic_num_partitions

    def _count_rebalance(self, protocol: str) -> None:
        self.core.metrics.cell(_REBALANCES[protocol]).value += 1

    def _share_ports(self) -> SharePorts:
        """Return the parts of the node that share groups use; called when a group exists."""
        from kwire.group.share.coordinator import SharePorts
        from kwire.node.end_offsets import EndOffsets

        pool = self.core.broker_pool(self.core.config.request_timeout_ms / 1000)
        return SharePorts(
            persister=self.persister,
            end_offsets=EndOffsets(self.log.replicas, self._other_brokers(), pool).ask,
            spawn=self._spawn,
        )

    def _topics(self) -> ImageTopics:
        """Return the topics of the newest metadata."""
        image = self.core.publisher.image
        if self._image_topics is None:
            from kwire.node.group_topics import ImageTopics

            self._image_topics = ImageTopics(image, {}, image.applied.offset)
        elif self._image_topics.image is not image:
            self._image_topics = self._image_topics.next(image)
        return self._image_topics
