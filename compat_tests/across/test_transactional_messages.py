"""Transactions by single messages: the codes that Apache Kafka 4.3.1 gives a producer's records,
commits and markers, in and out of their transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from kwire import errors
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.codec.messages.end_txn import EndTxnRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest
from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from kwire.records import build
from kwire.records.header import headers
from kwire.testing.wire import WireClient

NONE = 0
BUSY = {
    errors.CoordinatorLoadInProgress.code,
    errors.CoordinatorNotAvailable.code,
    errors.NotCoordinator.code,
    errors.ConcurrentTransactions.code,
    errors.NotEnoughReplicas.code,
    errors.NotLeaderOrFollower.code,
    errors.UnknownTopicOrPartition.code,
}
GROUPS, TRANSACTIONS = 0, 1
FAR_EPOCH = 1000
"""A coordinator epoch above that of the real coordinator."""


class Producer:
    """A transactional producer that sends one message after the other."""

    def __init__(self, client: WireClient, topic: str, transactional_id: str) -> None:
        self.client, self.topic, self.transactional_id = client, topic, transactional_id
        self.producer_id, self.epoch = -1, -1

    def begin_session(self) -> None:
        """Get an id and an epoch."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=60_000
        )

        def init() -> bool:
            answer = self.client.call(request, 4)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            assert answer.error_code == NONE or answer.error_code in BUSY
            return answer.error_code == NONE

        eventually(init, "a producer id")

    def produce(self, sequence: int, epoch: int | None = None, *, version: int = 12) -> int:
        """Return the error code of a batch of one record."""
        batch = build.batch(
            [build.New(None, b"value")],
            timestamp_ms=int(time.time() * 1000),
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            transactional=True,
            leader_epoch=-1,
        )
        data = ProduceRequest.TopicProduceData
        partition = data.PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[data(name=self.topic, partition_data=[partition])],
        )
        answer = self.client.call(request, version)
        return answer.responses[0].partition_responses[0].error_code

    def mark(
        self, *, commit: bool, epoch: int, coordinator_epoch: int, version: int = 0, index: int = 0
    ) -> int:
        """Return the error code of a marker that an administrator writes."""
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic(name=self.topic, partition_indexes=[index])
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=self.producer_id,
                    producer_epoch=epoch,
                    transaction_result=commit,
                    topics=[topic],
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=version,
                )
            ]
        )
        answer = self.client.call(request, 2 if version else 1)
        return answer.markers[0].topics[0].partitions[0].error_code

    def end(self, *, commit: bool) -> int:
        """End the transaction; take the next epoch and return the error code."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.client.call(request, 5)
        if answer.error_code == NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def state(self) -> tuple[int, int, int]:
        """Return epoch, last sequence and transaction start that DescribeProducers shows."""
        topic = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(topics=[topic(name=self.topic, partition_indexes=[0])])
        producers = self.client.call(request, 0).topics[0].partitions[0].active_producers
        (state,) = (p for p in producers if p.producer_id == self.producer_id)
        return state.producer_epoch, state.last_sequence, state.current_txn_start_offset

    def read(self) -> tuple[int, int, list[tuple[int, bool]], list[int]]:
        """Return high watermark, last stable offset, batches and aborted transactions' starts."""
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=1,
            topics=[topic(topic=self.topic, partitions=[partition])],
        )
        data = self.client.call(request, 12).responses[0].partitions[0]
        assert data.error_code == NONE
        batches = [(h.base_offset, h.is_control) for _, h in headers(bytes(data.records or b""))]
        aborted = [each.first_offset for each in data.aborted_transactions or ()]
        return data.high_watermark, data.last_stable_offset, batches, aborted

    def commit_offset(self, group: str, offset: int, epoch: int | None = None) -> int:
        """Return the error code of an offset of the topic's partition, committed for a group."""
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            topics=[topic(name=self.topic, partitions=[partition])],
        )
        return self.client.call(request, 5).topics[0].partitions[0].error_code

    def fetch_offset(self, group: str) -> tuple[int, int]:
        """Return the group's stable offset and the error code."""
        of_group = OffsetFetchRequest.OffsetFetchRequestGroup
        topic = of_group.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[of_group(group_id=group, topics=[topic])], require_stable=True
        )
        partition = self.client.call(request, 8).groups[0].topics[0].partitions[0]
        return partition.committed_offset, partition.error_code


def has_coordinator(client: WireClient, request: FindCoordinatorRequest) -> bool:
    return client.call(request, 4).coordinators[0].error_code == NONE


@pytest.fixture
def producer(broker: Broker, topic: str, unique: Callable[[str], str]) -> Iterator[Producer]:
    create(broker.address, topic)
    with connect(broker.address) as client:
        transactional_id = unique("txn")
        for kind, key in ((TRANSACTIONS, transactional_id), (GROUPS, "g")):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            eventually(partial(has_coordinator, client, request), "a coordinator")
        subject = Producer(client, topic, transactional_id)
        subject.begin_session()
        yield subject


def find(client: WireClient, request: FindCoordinatorRequest) -> None:
    """Return once there is a coordinator."""
    eventually(lambda: client.call(request, 4).coordinators[0].error_code == NONE, "a coordinator")


def retry(call: Callable[[], int]) -> int:
    """Repeat a call while a coordinator is busy or the topic is too new; return its code."""
    codes = [call()]

    def is_done() -> bool:
        if codes[-1] in BUSY:
            codes.append(call())
        return codes[-1] not in BUSY

    eventually(is_done, "an answer of a coordinator that is not busy")
    return codes[-1]


def test_records_add_their_partition_and_the_end_bumps_the_epoch(producer: Producer) -> None:
    assert retry(lambda: producer.produce(0)) == NONE
    assert producer.produce(1) == NONE
    assert producer.read() == (2, 0, [], [])
    assert producer.state() == (producer.epoch, 1, 0)
    assert producer.end(commit=False) == NONE
    eventually(lambda: producer.read()[1] == 3, "the marker")
    assert producer.read() == (3, 3, [(0, False), (1, False), (2, True)], [0])
    assert producer.state() == (producer.epoch, -1, -1)
    old = producer.epoch - 1
    assert producer.produce(2, old) == errors.InvalidProducerEpoch.code
    assert retry(lambda: producer.produce(0)) == NONE
    assert producer.end(commit=True) == NONE


def test_partition_outside_the_transaction_is_refused_to_older_clients(producer: Producer) -> None:
    for version, expected in (
        (10, errors.InvalidTxnState.code),
        (11, errors.TransactionAbortable.code),
    ):
        assert retry(partial(producer.produce, 0, version=version)) == expected
    assert producer.read() == (0, 0, [], [])


def test_first_sequence_of_a_transaction_is_zero(producer: Producer) -> None:
    assert retry(lambda: producer.produce(3)) == errors.OutOfOrderSequenceNumber.code
    assert retry(lambda: producer.produce(0)) == NONE
    assert producer.produce(2) == errors.OutOfOrderSequenceNumber.code
    assert producer.produce(0) == NONE, "a repetition"
    assert producer.read()[0] == 1
    assert producer.end(commit=True) == NONE


def test_marker_with_the_epoch_of_the_transaction_is_late_in_version_2(producer: Producer) -> None:
    assert retry(lambda: producer.produce(0)) == NONE
    epoch = producer.epoch
    strict = {"coordinator_epoch": FAR_EPOCH, "version": 2}
    late = errors.InvalidProducerEpoch.code
    assert producer.mark(commit=False, epoch=epoch, **strict) == late
    assert producer.mark(commit=False, epoch=epoch + 1, **strict) == NONE
    assert producer.mark(commit=False, epoch=epoch + 1, **strict) == NONE
    assert producer.read()[1:] == (3, [(0, False), (1, True), (2, True)], [0])
    assert producer.state() == (epoch + 1, -1, -1)
    assert producer.mark(commit=True, epoch=epoch, **strict) == late


def test_marker_of_a_former_coordinator_is_fenced(producer: Producer) -> None:
    assert retry(lambda: producer.produce(0)) == NONE
    assert producer.end(commit=True) == NONE
    assert retry(lambda: producer.produce(0)) == NONE
    epoch = producer.epoch
    assert producer.mark(commit=True, epoch=epoch, coordinator_epoch=FAR_EPOCH) == NONE
    fenced = errors.TransactionCoordinatorFenced.code
    assert producer.mark(commit=True, epoch=epoch, coordinator_epoch=FAR_EPOCH - 1) == fenced
    older = errors.InvalidProducerEpoch.code
    assert producer.mark(commit=True, epoch=epoch - 1, coordinator_epoch=FAR_EPOCH) == older
    assert producer.read()[:2] == (4, 4)


def test_marker_for_a_partition_that_does_not_exist_is_refused(producer: Producer) -> None:
    code = producer.mark(commit=True, epoch=0, coordinator_epoch=FAR_EPOCH, index=7)
    assert code == errors.UnknownTopicOrPartition.code


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_are_unstable_until_it_ends(
    producer: Producer, group: str, commit: bool
) -> None:
    assert retry(lambda: producer.commit_offset(group, 42)) == NONE
    assert producer.fetch_offset(group) == (-1, errors.UnstableOffsetCommit.code)
    assert producer.end(commit=commit) == NONE
    eventually(lambda: producer.fetch_offset(group)[1] == NONE, "a stable offset")
    assert producer.fetch_offset(group) == (42 if commit else -1, NONE)
    old = producer.epoch - 1
    assert producer.commit_offset(group, 43, old) == errors.InvalidProducerEpoch.code
