"""The coordinators and leaders on other nodes that this node's coordinators use.

Requests to other nodes have their own connections: one for markers, which wait for followers, and
one for verifications, for which a producer waits. A request to a broker ends when the metadata show
the broker as fenced: from then on, other brokers lead its partitions, and a paused or cut-off
broker answers late or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from kwire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnTopic
from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kwire.errors import (
    NONE,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    KafkaError,
    NetworkException,
    UnknownServerError,
)
from kwire.net.connection_pool import ConnectionPool, OutOfReach
from kwire.node.verification_requests import Result, Transaction, VerificationRequests
from kwire.transaction.shard import AddPartitions
from kwire.transaction.transitions import Producer
from kwire.types import NO_LEADER, TRANSACTION_STATE, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kwire.codec.schema import Request
    from kwire.raftmeta.metadata.image import BrokerImage, MetadataImage
    from kwire.replica.transaction_ports import MarkerWriter, TransactionMarker
    from kwire.transaction.coordinator import TransactionCoordinator

Resp = TypeVar("Resp")
Marker = WriteTxnMarkersRequest.WritableTxnMarker

_BROKER_VERSION: Final = 2
"""The `transaction.version` of producers whose partitions the brokers themselves add."""


@attrs.define(eq=False, repr=False)
class OtherBrokers:
    """The brokers of the cluster, by their ids in the newest metadata."""

    node: int
    """This broker's id."""
    listener: str
    image: Callable[[], MetadataImage]
    _attempts: dict[trio.CancelScope, BrokerImage] = attrs.field(factory=dict, init=False)
    """The open requests, each with the broker's registration at the time it was sent."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's leader, NO_LEADER if there is none; None if it does not exist."""
        state = self.image().partition(*partition)
        return None if state is None else state.leader

    async def call(self, pool: ConnectionPool, broker: int, request: Request[Resp]) -> Resp:
        """Return a broker's answer; raises KafkaError if it is fenced before it answers."""
        state = self.image().brokers.get(broker)
        endpoint = None if state is None else state.endpoint(self.listener)
        if state is None or endpoint is None:
            raise NetworkException(f"broker {broker} has no listener {self.listener}")
        if not state.fenced:
            with trio.CancelScope() as attempt:
                self._attempts[attempt] = state
                try:
                    return await pool.call(endpoint.host, endpoint.port, request)
                except OutOfReach as error:
                    raise NetworkException(str(error)) from error
                finally:
                    del self._attempts[attempt]
        raise NetworkException(f"broker {broker} is fenced")

    def on_image_published(self, image: MetadataImage) -> None:
        """End the requests to brokers that were fenced or restarted since they were sent."""
        for attempt, sent_to in self._attempts.items():
            broker = image.brokers.get(sent_to.id)
            if broker is None or broker.fenced or broker.epoch != sent_to.epoch:
                attempt.cancel()


@attrs.frozen(eq=False, repr=False)
class MarkerBrokers:
    """The leaders of transactions' partitions, to which the coordinator sends markers."""

    others: OtherBrokers
    pool: ConnectionPool
    local: MarkerWriter
    """The writer for partitions that this broker leads."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.others.leader_of(partition)

    async def write_markers(
        self, broker: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return each marker's error codes; raises KafkaError if the broker does not answer."""
        if broker == self.others.node:
            return await self.local.write_markers(markers)
        request = WriteTxnMarkersRequest(markers=[_marker(marker) for marker in markers])
        return _codes(markers, await self.others.call(self.pool, broker, request))


def _marker(marker: TransactionMarker) -> Marker:
    topics: dict[str, Marker.WritableTxnMarkerTopic] = {}
    for topic, index in marker.partitions:
        written = topics.setdefault(topic, Marker.WritableTxnMarkerTopic(name=topic))
        written.partition_indexes.append(index)
    return Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=list(topics.values()),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _codes(
    markers: Sequence[TransactionMarker], response: WriteTxnMarkersResponse
) -> list[dict[TopicPartition, int]]:
    """Return the response's codes by marker; a request has at most one marker per producer."""
    by_producer = {
        result.producer_id: {
            TopicPartition(topic.name, partition.partition_index): partition.error_code
            for topic in result.topics
            for partition in topic.partitions
        }
        for result in response.markers
    }
    return [by_producer.get(marker.producer_id, {}) for marker in markers]


@attrs.frozen(eq=False, repr=False)
class Verifier:
    """The cluster's transaction coordinators, as queried by the leaders of partitions."""

    others: OtherBrokers
    requests: VerificationRequests
    local: Callable[[], TransactionCoordinator]

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
        producer = Producer(producer_id, producer_epoch)
        others = self.others
        try:
            coordinator = self._coordinator_of(transactional_id)
            if coordinator != others.node:
                transaction = _transaction(transactional_id, producer, partitions, add=add)
                return _codes_of(partitions, await self.requests.verify(coordinator, transaction))
            if add:
                return await self._add(transactional_id, producer, partitions)
            return await self.local().verify(transactional_id, producer, partitions)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    def _coordinator_of(self, transactional_id: str) -> int:
        """Return the broker that leads the id's partition; raises CoordinatorNotAvailable."""
        index = self.local().partition_of(transactional_id)
        leader = self.others.leader_of(TopicPartition(TRANSACTION_STATE, index))
        if leader is None or leader == NO_LEADER:
            raise CoordinatorNotAvailable
        return leader

    async def _add(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Add partitions; on ConcurrentTransactions, first wait until the last one has ended.

        The caller then asks again, because the marker that ended the last transaction arrived after
        the caller's request.
        """
        request = AddPartitions(transactional_id, producer, frozenset(partitions), _BROKER_VERSION)
        try:
            await self.local().add_partitions(request, repeat=False)
        except ConcurrentTransactions:
            await self.local().wait_completed(transactional_id)
            raise
        return dict.fromkeys(partitions, NONE)


def _transaction(
    transactional_id: str,
    producer: Producer,
    partitions: Sequence[TopicPartition],
    *,
    add: bool,
) -> Transaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in partitions:
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=not add,
        topics=list(topics.values()),
    )


def _codes_of(
    partitions: Sequence[TopicPartition], transaction: Result | None
) -> Mapping[TopicPartition, int]:
    codes = dict.fromkeys(partitions, UnknownServerError.code)
    for topic in () if transaction is None else transaction.topic_results:
        for result in topic.results_by_partition:
            partition = TopicPartition(topic.name, result.partition_index)
            codes[partition] = result.partition_error_code
    return codes
