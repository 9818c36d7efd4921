"""The states of share partitions on one node; most of their modules are loaded on first use.

First use is when the node leads a partition of `__share_group_state`, is asked about one, or stores
a state with another node's coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs

from kwire.types import NO_LEADER, SHARE_GROUP_STATE, TopicPartition

if TYPE_CHECKING:
    import trio

    from kwire.codec.schema import Request
    from kwire.coordinator.ports import LedPartition
    from kwire.net.connection_pool import ConnectionPool
    from kwire.node.core import Core
    from kwire.node.other_brokers import OtherBrokers
    from kwire.raftmeta.metadata.image import MetadataImage
    from kwire.replica.coordinator_log import CoordinatorLog
    from kwire.share.keys import SharePartition
    from kwire.share.persister import Persister
    from kwire.share.state.coordinator import ShareCoordinator
    from kwire.share.state.settings import ShareStateSettings
    from kwire.share.state.shard import ShareStateShard

Resp = TypeVar("Resp")


@attrs.define(eq=False, repr=False)
class NodeShareStates:
    """One node's share coordinator and persister; both are created on first use."""

    core: Core
    log: CoordinatorLog
    nursery: trio.Nursery | None = None
    """The nursery of the coordinator's task; set before the node gets a role."""
    _coordinator: ShareCoordinator | None = None
    _persister: Persister | None = None
    _counts: dict[bytes, int] = attrs.field(factory=dict)
    _knows_topics: bool = False
    """True once the metadata includes all topics created before this node started."""

    def on_role_changed(self, partition: LedPartition) -> None:
        """Load or drop a partition whose role was gained or lost; called by the replica layer."""
        if partition.topic == SHARE_GROUP_STATE:
            self.coordinator().on_role_changed(partition)

    def on_topics_deleted(self) -> None:
        """Delete the states of topics that no longer exist."""
        if self._coordinator is not None:
            self._coordinator.on_topics_deleted()

    def on_metadata_caught_up(self) -> None:
        """Delete the states of topics that were deleted while this node was down."""
        self._knows_topics = True
        self.on_topics_deleted()

    def resign_all(self) -> None:
        """Drop all partitions before a shutdown, failing the requests that still wait."""
        if self._coordinator is not None:
            self._coordinator.service.resign_all()

    def machines(self) -> list[ShareStateShard]:
        """Return the machines of the loaded partitions that this node leads."""
        return [] if self._coordinator is None else self._coordinator.service.machines()

    def coordinator(self) -> ShareCoordinator:
        """Return the coordinator; the first call creates it and starts its task."""
        if self._coordinator is None:
            from kwire.share.state.coordinator import ShareCoordinator

            core = self.core
            self._coordinator = ShareCoordinator(
                log=self.log,
                clock=core.clock,
                delete_before=self._delete_before,
                topics=self,
                settings=self._settings,
                partitions=self._partition_count,
            )
            assert self.nursery is not None
            self.nursery.start_soon(self._coordinator.run)
        return self._coordinator

    def persister(self) -> Persister:
        """Return the persister; the first call creates it."""
        if self._persister is None:
            from kwire.share.state.persister import CoordinatorPersister

            self._persister = CoordinatorPersister(self._cluster(), self._task_nursery)
        return self._persister

    def _task_nursery(self) -> trio.Nursery:
        assert self.nursery is not None
        return self.nursery

    def _cluster(self) -> ShareCluster:
        from kwire.node.other_brokers import OtherBrokers

        config, publisher = self.core.config, self.core.publisher
        others = OtherBrokers(config.node_id, config.inter_broker_listener, lambda: publisher.image)
        publisher.subscribe(lambda image, _: others.on_image_published(image))
        pool = self.core.broker_pool(config.request_timeout_ms / 1000)
        return ShareCluster(self, others, pool)

    def _settings(self) -> ShareStateSettings:
        from kwire.share.state.settings import ShareStateSettings

        return ShareStateSettings.of(self.core.current.config)

    def _partition_count(self) -> int:
        """Return the partition count of `__share_group_state`, as it was on the first call.

        If the topic grows, share partitions keep their coordinator until a restart, as in Kafka.
        """
        topic = self._image.topic(SHARE_GROUP_STATE)
        if topic is None:
            return self.core.current.config.share_coordinator_state_topic_num_partitions
        return self._counts.setdefault(topic.id, len(topic.partitions))

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


@attrs.frozen(eq=False, repr=False)
class ShareCluster:
    """The share coordinators of the cluster, as reached by this node's persister."""

    states: NodeShareStates
    others: OtherBrokers
    pool: ConnectionPool

    @property
    def node(self) -> int:
        return self.others.node

    def local(self) -> ShareCoordinator:
        return self.states.coordinator()

    def coordinator_of(self, of: SharePartition) -> int | None:
        index = self.local().partition_of(of)
        leader = self.others.leader_of(TopicPartition(SHARE_GROUP_STATE, index))
        return None if leader == NO_LEADER else leader

    async def create_topic(self) -> None:
        await self.states.core.topic_creation.ensure_topic(SHARE_GROUP_STATE)

    async def call(self, broker: int, request: Request[Resp]) -> Resp:
        return await self.others.call(self.pool, broker, request)
