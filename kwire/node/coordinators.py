"""A coordinator of one node; its modules are loaded, and its task is started, on first use.

First use is when the node leads a partition of the coordinator's internal topic, or is asked about
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from kwire.configs.broker import BrokerConfig
    from kwire.coordinator.ports import LedPartition
    from kwire.node.core import Core
    from kwire.node.other_brokers import OtherBrokers
    from kwire.replica.coordinator_log import CoordinatorLog


class Service(Protocol):
    """The part of a coordinator's service that a node uses before it shuts down."""

    def resign_all(self) -> None: ...


class Coordinator(Protocol):
    """The part of a coordinator that its node uses, whatever it coordinates."""

    @property
    def service(self) -> Service: ...

    def on_role_changed(self, partition: LedPartition) -> None: ...


C = TypeVar("C", bound=Coordinator)


@attrs.define(eq=False, repr=False)
class NodeCoordinator(Generic[C]):
    """One node's coordinator, of one kind, which is created on first use."""

    topic: ClassVar[str]
    """The internal topic, each partition of which is led by one coordinator."""
    core: Core
    log: CoordinatorLog
    nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    """The nursery of the coordinator's tasks; set before the node gets a role."""
    _coordinator: C | None = attrs.field(default=None, init=False)
    _others: OtherBrokers | None = attrs.field(default=None, init=False)
    _counts: dict[bytes, int] = attrs.field(factory=dict, init=False)

    def on_role_changed(self, partition: LedPartition) -> None:
        """Load or drop a partition whose role was gained or lost; called by the replica layer."""
        if partition.topic == self.topic:
            self.coordinator().on_role_changed(partition)

    def resign_all(self) -> None:
        """Drop all partitions before a shutdown, failing the requests that still wait."""
        if self._coordinator is not None:
            self._coordinator.service.resign_all()

    def coordinator(self) -> C:
        """Return the coordinator; the first call creates it and starts its task."""
        if self._coordinator is None:
            self._coordinator = self._start()
        return self._coordinator

    def _start(self) -> C:
        """Create the coordinator and start its task."""
        raise NotImplementedError

    def _new_topic_count(self, config: BrokerConfig) -> int:
        """Return the number of partitions with which the topic would be created."""
        raise NotImplementedError

    def _spawn(self, task: Callable[[], Awaitable[object]]) -> None:
        self._task_nursery().start_soon(task)

    def _task_nursery(self) -> trio.Nursery:
        assert self.nursery is not None
        return self.nursery

    def _other_brokers(self) -> OtherBrokers:
        """Return the brokers of the newest metadata; the first call loads their module."""
        if self._others is None:
            from kwire.node.other_brokers import OtherBrokers

            config, publisher = self.core.config, self.core.publisher
            others = self._others = OtherBrokers(
                config.node_id, config.inter_broker_listener, lambda: publisher.image
            )
            publisher.subscribe(lambda image, _: others.on_image_published(image))
        return self._others

    def _partition_count(self) -> int:
        """Return the topic's partition count, as it was on the first call.

        If the topic grows, what is coordinated keeps its partition until a restart, as in Kafka.
        """
        topic = self.core.publisher.image.topic(self.topic)
        if topic is None:
            return self._new_topic_count(self.core.current.config)
        return self._counts.setdefault(topic.id, len(topic.partitions))
