"""The transactions of one node; most of their modules are loaded on first use.

First use is when the node leads a partition of `__transaction_state`, or is asked about one.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from kwire.replica.coordinator_log import CoordinatorLog
from kwire.types import TRANSACTION_STATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import trio

    from kwire.coordinator.ports import LedPartition
    from kwire.net.connection_pool import ConnectionPool
    from kwire.node.core import Core
    from kwire.node.other_brokers import OtherBrokers, Verifier
    from kwire.replica.transaction_ports import MarkerWriter
    from kwire.transaction.coordinator import TransactionCoordinator
    from kwire.transaction.settings import TransactionSettings
    from kwire.types import TopicPartition

_FEATURE: Final = "transaction.version"
_VERIFICATION_S: Final = 3.0
"""The time limit of a verification by another node, after which the producer should retry.

While a verification runs, the producer's later requests on its connection wait behind it, even
requests that would find the next coordinator.
"""


@attrs.define(eq=False, repr=False)
class NodeTransactions:
    """One node's transaction coordinator and verifier of producers; both created on first use."""

    core: Core
    log: CoordinatorLog
    markers: MarkerWriter
    """Writes markers to the partitions that this broker leads."""
    take_id: Callable[[], Awaitable[int]]
    """Returns a new producer id; raises KafkaError."""
    nursery: trio.Nursery | None = None
    """The nursery of the coordinator's task; set before the node gets a role."""
    _coordinator: TransactionCoordinator | None = None
    _verifier: Verifier | None = None
    _brokers: OtherBrokers | None = None
    _counts: dict[bytes, int] = attrs.field(factory=dict)

    def on_role_changed(self, partition: LedPartition) -> None:
        """Load or drop a partition whose role was gained or lost; called by the replica layer."""
        if partition.topic == TRANSACTION_STATE:
            self.coordinator().on_role_changed(partition)

    def resign_all(self) -> None:
        """Drop all partitions before a shutdown, failing the requests that still wait."""
        if self._coordinator is not None:
            self._coordinator.service.resign_all()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool = False,
    ) -> Mapping[TopicPartition, int]:
        """Return the coordinator's code for each partition; ``add`` also adds the partitions."""
        verifier = self._verifier
        if verifier is None:
            verifier = self._verifier = self._make_verifier()
        return await verifier.verify(
            transactional_id, producer_id, producer_epoch, partitions, add=add
        )

    def _make_verifier(self) -> Verifier:
        from kwire.node.other_brokers import Verifier
        from kwire.node.verification_requests import VerificationRequests

        assert self.nursery is not None
        nursery, others, pool = self.nursery, self._other_brokers(), self._pool(_VERIFICATION_S)
        requests = VerificationRequests(partial(others.call, pool), lambda: nursery)
        return Verifier(others, requests, self.coordinator)

    def coordinator(self) -> TransactionCoordinator:
        """Return the coordinator; the first call creates it and starts its task."""
        if self._coordinator is None:
            self._coordinator = self._make()
            assert self.nursery is not None
            self.nursery.start_soon(self._coordinator.run)
        return self._coordinator

    def _make(self) -> TransactionCoordinator:
        from kwire.node.other_brokers import MarkerBrokers
        from kwire.transaction.coordinator import TransactionCoordinator

        core = self.core
        markers = MarkerBrokers(self._other_brokers(), self._pool(), self.markers)
        return TransactionCoordinator(
            log=self.log,
            clock=core.clock,
            brokers=markers,
            settings=self._settings,
            server_version=lambda: core.publisher.image.features.get(_FEATURE, 0),
            partitions=self._partition_count,
            take_id=self.take_id,
        )

    def _other_brokers(self) -> OtherBrokers:
        from kwire.node.other_brokers import OtherBrokers

        if self._brokers is None:
            config, publisher = self.core.config, self.core.publisher
            brokers = self._brokers = OtherBrokers(
                config.node_id, config.inter_broker_listener, lambda: publisher.image
            )
            publisher.subscribe(lambda image, _: brokers.on_image_published(image))
        return self._brokers

    def _pool(self, timeout_max_s: float = inf) -> ConnectionPool:
        config = self.core.config
        timeout_s = min(config.request_timeout_ms / 1000, timeout_max_s)
        return self.core.broker_pool(timeout_s)

    def _settings(self) -> TransactionSettings:
        from kwire.transaction.settings import TransactionSettings

        return TransactionSettings.of(self.core.current.config)

    def _partition_count(self) -> int:
        """Return the partition count of `__transaction_state`, as it was on the first call.

        If the topic grows, transactional ids keep their partition until a restart, as in Kafka.
        """
        topic = self.core.publisher.image.topic(TRANSACTION_STATE)
        if topic is None:
            return self.core.current.config.transaction_state_log_num_partitions
        return self._counts.setdefault(topic.id, len(topic.partitions))
