"""The transactions of one node; most of their modules are loaded on first use."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from kwire.node.coordinators import NodeCoordinator
from kwire.types import TRANSACTION_STATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kwire.configs.broker import BrokerConfig
    from kwire.net.connection_pool import ConnectionPool
    from kwire.node.other_brokers import Verifier
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
class NodeTransactions(NodeCoordinator["TransactionCoordinator"]):
    """One node's transaction coordinator and verifier of producers; both created on first use."""

    topic = TRANSACTION_STATE
    markers: MarkerWriter
    """Writes markers to the partitions that this broker leads."""
    take_id: Callable[[], Awaitable[int]]
    """Returns a new producer id; raises KafkaError."""
    _verifier: Verifier | None = None

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

        others, pool = self._other_brokers(), self._pool(_VERIFICATION_S)
        requests = VerificationRequests(partial(others.call, pool), self._task_nursery)
        return Verifier(others, requests, self.coordinator)

    def _start(self) -> TransactionCoordinator:
        from kwire.node.other_brokers import MarkerBrokers
        from kwire.transaction.coordinator import TransactionCoordinator

        core = self.core
        markers = MarkerBrokers(self._other_brokers(), self._pool(), self.markers)
        coordinator = TransactionCoordinator(
            log=self.log,
            clock=core.clock,
            brokers=markers,
            settings=self._settings,
            server_version=lambda: core.publisher.image.features.get(_FEATURE, 0),
            partitions=self._partition_count,
            take_id=self.take_id,
        )
        self._spawn(coordinator.run)
        return coordinator

    def _new_topic_count(self, config: BrokerConfig) -> int:
        return config.transaction_state_log_num_partitions

    def _pool(self, timeout_max_s: float = inf) -> ConnectionPool:
        config = self.core.config
        timeout_s = min(config.request_timeout_ms / 1000, timeout_max_s)
        return self.core.broker_pool(timeout_s)

    def _settings(self) -> TransactionSettings:
        from kwire.transaction.settings import TransactionSettings

        return TransactionSettings.of(self.core.current.config)
