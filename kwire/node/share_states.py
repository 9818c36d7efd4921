"""The states of share partitions on one node; most of their modules are loaded on first use.

Storing a state with another node's coordinator is a first use too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs

from kwire.node.coordinators import NodeCoordinator
from kwire.types import NO_LEADER, SHARE_GROUP_STATE, TopicPartition

if TYPE_CHECKING:
    from kwire.codec.schema import Request
    from kwire.configs.broker import BrokerConfig
    from kwire.net.connection_pool import ConnectionPool
    from kwire.raftmeta.metadata.image import MetadataImage
    from kwire.share.keys import SharePartition
    from kwire.share.persister import Persister
    from kwire.share.state.coordinator import ShareCoordinator
    from kwire.share.state.settings import ShareStateSettings
    from kwire.share.state.shard import ShareStateShard

Resp = TypeVar("Resp")


@attrs.define(eq=False, repr=False)
class NodeShareStates(NodeCoordinator["ShareCoordinator"]):
    """One node's share coordinator and persister; both are created on first use."""

    topic = SHARE_GROUP_STATE
    _persister: Persister | None = None
    _pool: ConnectionPool | None = None
    """The connections to other nodes' coordinators; created with the persister."""
    _knows_topics: bool = False
    """True once the metadata includes all topics created before this node started."""

    def on_topics_deleted(self) -> None:
        """Delete the states of topics that no longer exist."""
        if self._coordinator is not None:
            self._coordinator.on_topics_deleted()

    def on_metadata_caught_up(self) -> None:
        """Delete the states of topics that were deleted while this node was down."""
        self._knows_topics = True
        self.on_topics_deleted()

    def machines(self) -> list[ShareStateShard]:
        """Return the machines of the loaded partitions that this node leads."""
        return [] if self._coordinator is None else self._coordinator.service.machines()

    def _start(self) -> ShareCoordinator:
        from kwire.share.state.coordinator import ShareCoordinator

        coordinator = ShareCoordinator(
            log=self.log,
            clock=self.core.clock,
            delete_before=self._delete_before,
            topics=self,
            settings=self._settings,
            partitions=self._partition_count,
        )
        self._spawn(coordinator.run)
        return coordinator

    def _new_topic_count(self, config: BrokerConfig) -> int:
        return config.share_coordinator_state_topic_num_partitions

    def persister(self) -> Persister:
        """Return the persister; the first call creates it."""
        if self._persister is None:
            from kwire.share.state.persister import CoordinatorPersister

            self._pool = self.core.broker_pool(self.core.config.request_timeout_ms / 1000)
            self._persister = CoordinatorPersister(self, self._task_nursery)
        return self._persister

    def _settings(self) -> ShareStateSettings:
        from kwire.share.state.settings import ShareStateSettings

        return ShareStateSettings.of(self.core.current.config)

    async def _delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete the records of a led partition before an offset; raises KafkaError."""
        replicas = self.log.replicas
        led = replicas.partitions.get_led(*partition)
        replicas.delete_before(led, offset)
        for error in (await replicas.logs.keep_starts([led.log])).values():
            raise error

    # Topics of the newest metadata, for the coordinator

    @property
    def _image(self) -> MetadataImage:
        return self.core.publisher.image

    def has_partition(self, topic_id: bytes, partition: int) -> bool:
        topic = self._image.topics.get(topic_id)
        return topic is not None and partition in topic.partitions

    def is_deleted(self, topic_id: bytes) -> bool:
        return self._knows_topics and topic_id not in self._image.topics

    # The coordinators of the cluster, for the persister

    @property
    def node(self) -> int:
        return self.core.config.node_id

    def coordinator_of(self, of: SharePartition) -> int | None:
        index = self.coordinator().partition_of(of)
        leader = self._other_brokers().leader_of(TopicPartition(SHARE_GROUP_STATE, index))
        return None if leader == NO_LEADER else leader

    async def create_topic(self) -> None:
        await self.core.topic_creation.ensure_topic(SHARE_GROUP_STATE)

    async def call(self, broker: int, request: Request[Resp]) -> Resp:
        assert self._pool is not None
        return await self._other_brokers().call(self._pool, broker, request)
