"""Requests of a transaction that arrive late, twice or in another order (KIP-890).

The producer speaks the protocol itself, as a client of `transaction.version` 2 does: it can lose
its connection while a request is on its way, and send that again over another one.  A proxy holds
the request, and lets it arrive while the next transaction is open.  Invariants 57 and 58;
`tests/mutations/late_requests.py` has mistakes of a coordinator that these tests catch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import attrs
import pytest

from compat_tests.confluent_kafka.clients import create, read
from compat_tests.harness.broker import Broker
from compat_tests.harness.frames import FrameProxy, HeldRequest
from compat_tests.harness.wait import eventually
from kwire.codec.compile import decode
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    NotLeaderOrFollower,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from kwire.records.build import New, batch
from kwire.testing.wire import WireClient

PRODUCE, END_TXN = 0, 26
PRODUCE_VERSION, END_TXN_VERSION = 12, 5
TRANSIENT = {
    ConcurrentTransactions.code,
    NotLeaderOrFollower.code,
    UnknownTopicOrPartition.code,
}
"""The errors of a record while markers are missing, or the topic is new."""
RESPONSE_HEADER = 5
"""The bytes of a flexible response before its body: a correlation id and no tagged fields."""
Topic = ProduceRequest.TopicProduceData
Partition = Topic.PartitionProduceData


@attrs.define(eq=False)
class TransactionalProducer:
    """A producer of one partition, with one connection at a time."""

    port: int
    name: str
    topic: str
    id: int = -1
    epoch: int = -1
    sequence: int = 0
    client: WireClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reconnect()

    def reconnect(self) -> None:
        self.client = WireClient("127.0.0.1", self.port, timeout_s=30.0)

    def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        finding = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])

        def is_initialized() -> bool:
            self.client.call(finding, 6)  # It creates the topic of the coordinators.
            answer = self.client.call(request, 5)
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            return answer.error_code == 0

        eventually(is_initialized, "a producer id")

    def records(self, value: str) -> ProduceRequest:
        """Return the request that writes the next record of a transaction."""
        data = batch(
            [New(None, value.encode())],
            timestamp_ms=int(time.time() * 1000),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        topic = Topic(name=self.topic, partition_data=[Partition(index=0, records=data)])
        return ProduceRequest(
            transactional_id=self.name, acks=-1, timeout_ms=30_000, topic_data=[topic]
        )

    def write(self, value: str) -> None:
        """Write a record; the markers of the last transaction may still be missing."""
        request = self.records(value)
        code = 0

        def is_final() -> bool:
            nonlocal code
            answer = self.client.call(request, PRODUCE_VERSION)
            code = answer.responses[0].partition_responses[0].error_code
            return code not in TRANSIENT

        eventually(is_final, "an answer")
        assert code == 0
        self.sequence += 1

    def ending(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, *, commit: bool) -> None:
        self.repeat(self.ending(commit=commit))

    def repeat(self, request: EndTxnRequest) -> None:
        """Send an end until it has taken effect; go on as the producer that it returns."""

        def is_over() -> bool:
            answer = self.client.call(request, END_TXN_VERSION)
            if answer.error_code != ConcurrentTransactions.code:
                assert answer.error_code == 0
                self.id, self.epoch = answer.producer_id, answer.producer_epoch
            return answer.error_code == 0

        eventually(is_over, "the end of a transaction")
        self.sequence = 0

    def state(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        (state,) = self.client.call(request, 0).transaction_states
        return state.transaction_state


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FrameProxy]:
    proxy = FrameProxy(broker.port)
    yield proxy
    proxy.close()


@pytest.fixture
def producer(broker, proxy, topic, unique) -> Iterator[TransactionalProducer]:
    create(broker.address, topic)
    producer = TransactionalProducer(proxy.port, unique("txn"), topic)
    producer.init()
    yield producer
    producer.client.close()


def send_slowly(producer: TransactionalProducer, proxy: FrameProxy, request, version: int):
    """Send a request that the network holds; the client loses its connection meanwhile."""
    key = {PRODUCE_VERSION: PRODUCE, END_TXN_VERSION: END_TXN}[version]
    count = len(proxy.requests)
    proxy.hold(key)
    producer.client.send(request, version)
    late = proxy.wait_held(count + 1)
    proxy.hold()
    producer.client.close()
    producer.reconnect()
    return late


def code_of_end(late: HeldRequest) -> int:
    """Let the end of a transaction arrive; return the error code of its answer."""
    answer = late.wait_answered()[RESPONSE_HEADER:]
    return decode(EndTxnResponse, answer, END_TXN_VERSION).error_code


def code_of_records(late: HeldRequest) -> int:
    answer = decode(ProduceResponse, late.wait_answered()[RESPONSE_HEADER:], PRODUCE_VERSION)
    return answer.responses[0].partition_responses[0].error_code


def values(broker: Broker, topic: str, count: int, isolation: str = "read_committed") -> list[str]:
    messages = read(broker.address, topic, count, isolation_level=isolation)
    return [message.value().decode() for message in messages]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_late_end_does_not_end_the_next_transaction(broker, producer, proxy, topic, commit):
    """The client repeated it over another connection, and has begun its next transaction."""
    producer.write("first")
    request = producer.ending(commit=commit)
    late = send_slowly(producer, proxy, request, END_TXN_VERSION)
    producer.repeat(request)
    producer.write("second")
    assert code_of_end(late) == ProducerFenced.code
    assert producer.state() == "Ongoing"
    producer.end(commit=not commit)
    producer.write("third")
    producer.end(commit=True)
    expected = ["first", "third"] if commit else ["second", "third"]
    assert values(broker, topic, 2) == expected
    assert values(broker, topic, 3, "read_uncommitted") == ["first", "second", "third"]


def test_ends_of_two_transactions_in_another_order(broker, producer, proxy, topic):
    """The first transaction's commit arrives after the second's abort, and before the third's."""
    producer.write("first")
    first = producer.ending(commit=True)
    late = [send_slowly(producer, proxy, first, END_TXN_VERSION)]
    producer.repeat(first)
    producer.write("second")
    second = producer.ending(commit=False)
    late.append(send_slowly(producer, proxy, second, END_TXN_VERSION))
    producer.repeat(second)
    eventually(lambda: producer.state() == "CompleteAbort", "the markers")
    assert code_of_end(late[0]) == ProducerFenced.code
    producer.write("third")
    assert code_of_end(late[1]) == ProducerFenced.code
    assert producer.state() == "Ongoing"
    producer.end(commit=True)
    assert values(broker, topic, 2) == ["first", "third"]


def test_repeated_end_gets_the_answer_of_the_first(producer, proxy):
    """Three copies arrive at once, before the next transaction begins."""
    producer.write("first")
    request = producer.ending(commit=True)
    late = [send_slowly(producer, proxy, request, END_TXN_VERSION) for _ in range(3)]
    producer.repeat(request)
    eventually(lambda: producer.state() == "CompleteCommit", "the markers")
    threads = [threading.Thread(target=request.wait_answered) for request in late]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [
        decode(EndTxnResponse, request.wait_answered()[RESPONSE_HEADER:], END_TXN_VERSION)
        for request in late
    ]
    for answer in answers:
        assert answer.error_code == 0
        assert (answer.producer_id, answer.producer_epoch) == (producer.id, producer.epoch)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_late_record_is_in_no_later_transaction(broker, producer, proxy, topic, commit):
    """A record arrives when its transaction has ended, and again in the middle of the next."""
    producer.write("first")
    request = producer.records("late")
    late = [send_slowly(producer, proxy, request, PRODUCE_VERSION) for _ in range(2)]
    producer.end(commit=commit)
    eventually(lambda: producer.state().startswith("Complete"), "the markers")
    assert code_of_records(late[0]) == InvalidProducerEpoch.code
    producer.write("second")
    assert code_of_records(late[1]) == InvalidProducerEpoch.code
    producer.end(commit=True)
    expected = ["first", "second"] if commit else ["second"]
    assert values(broker, topic, len(expected)) == expected
    assert values(broker, topic, 2, "read_uncommitted") == ["first", "second"]
