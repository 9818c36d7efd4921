"""5,000 transactions that are open at once: in one partition, and at their coordinator."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.list_transactions import ListTransactionsRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from kwire.records.build import New, batch
from kwire.records.header import headers
from kwire.transaction.model import Transaction, TransactionState
from kwire.transaction.records import record_of, store
from kwire.types import TRANSACTION_STATE, TopicPartition
from tests.support.handlers.broker import one_batch
from tests.support.log.batches import TIME_MS, append, encode, marker
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene
from tests.turns.logs import BASE_OFFSET

OPEN: Final = 5_000
TOPIC: Final = "t"
TIMEOUT_MS: Final = 30_000
NAMES: Final = [f"id-{number}" for number in range(OPEN)]
READ_COMMITTED: Final = 1
BATCH_RECORDS: Final = 1_000


@asynccontextmanager
async def node_with_open_transactions(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    settings = {
        "transaction_state_log_num_partitions": "1",
        "transaction_state_log_replication_factor": "1",
        "transaction_state_log_min_isr": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.create(TOPIC)
        partition = node.parts.replicas.partitions.get(TOPIC, 0)
        for producer in range(OPEN):
            append(
                partition.log,
                [b"v"],
                transactional=True,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
            )
        await node.call(produce(), 9)
        await node.call(FindCoordinatorRequest(key_type=1, coordinator_keys=NAMES[:1]))
        await trio.sleep(10)
        append_states(node)
        yield node


def append_states(
    node: MeteredNode, state: TransactionState = TransactionState.ONGOING, epoch: int = 0
) -> None:
    """Append the coordinator's records of the transactions, as its last leader did."""
    log = node.parts.replicas.partitions.get(TRANSACTION_STATE, 0).log
    now_ms = node.server.services.clock.now_ms()
    for start in range(0, OPEN, BATCH_RECORDS):
        records = []
        for number in range(start, start + BATCH_RECORDS):
            transaction = Transaction(
                transactional_id=NAMES[number],
                producer_id=number,
                producer_epoch=epoch,
                timeout_ms=TIMEOUT_MS,
                state=state,
                partitions=frozenset({TopicPartition(TOPIC, 0)}),
                start_ms=now_ms,
                update_ms=now_ms,
                client_version=2,
            )
            records.append(New(*store(record_of(transaction, 2))))
        log.append_follower(batch(records, base_offset=log.end_offset, timestamp_ms=now_ms), now_ms)
    log.high_watermark = log.end_offset


def aborted_transactions(count: int) -> Iterator[bytes]:
    """Yield aborted transactions of one record each, a thousand at a time."""
    more = {"producer_id": OPEN, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    parts = (encode([b"v"], **more), marker(OPEN, commit=False))
    for first in range(0, count, BATCH_RECORDS):
        chunk = bytearray()
        for offset in range(2 * first, 2 * (first + BATCH_RECORDS)):
            chunk += BASE_OFFSET.pack(offset) + parts[offset % 2][BASE_OFFSET.size :]
        yield bytes(chunk)


OPENED: Final = Scene("open transactions", node_with_open_transactions)
row = OPENED.operation


def produce() -> ProduceRequest:
    shape = ProduceRequest.TopicProduceData
    data = shape.PartitionProduceData(index=0, records=one_batch())
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[shape(name=TOPIC, partition_data=[data])]
    )


@row("Produce", "open transactions", OPEN, "Produce")
async def append_more(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(produce(), version=9)
    assert not answer.responses[0].partition_responses[0].error_code


@row("Fetch of read_committed", "open transactions", OPEN, "Fetch")
async def fetch_committed(node: MeteredNode, size: int) -> None:
    shape = FetchRequest.FetchTopic
    partition = shape.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        isolation_level=READ_COMMITTED,
        topics=[shape(topic=TOPIC, partitions=[partition])],
    )
    (answer,) = await node.measure(request, version=12)
    assert answer.responses[0].partitions[0].last_stable_offset == 0


@row("Fetch of read_committed over all aborted transactions", "transactions", 100_000, "Fetch")
async def fetch_aborted(node: MeteredNode, size: int) -> None:
    """Their reader asks for as much as there is until it has all of it."""
    await node.create("aborted")
    replica = node.parts.replicas.partitions.get("aborted", 0)
    log = replica.log
    for chunk in aborted_transactions(size):
        log.append_follower(chunk, TIME_MS)
        log.high_watermark = log.end_offset
        assert replica.last_stable_offset == log.end_offset
        await trio.lowlevel.checkpoint()
    log.flush_state.flush()
    shape, offset, listed_count = FetchRequest.FetchTopic, 0, 0
    while offset < log.end_offset:
        partition = shape.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=50 << 20
        )
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            isolation_level=READ_COMMITTED,
            topics=[shape(topic="aborted", partitions=[partition])],
        )
        (answer,) = await node.measure(request, version=12)
        data = answer.responses[0].partitions[0]
        offset = [header.next_offset for _, header in headers(bytes(data.records))][-1]
        listed_count += len(data.aborted_transactions)
    assert listed_count >= size


@row("ListOffsets of read_committed", "open transactions", OPEN, "ListOffsets")
async def list_offsets(node: MeteredNode, size: int) -> None:
    shape = ListOffsetsRequest.ListOffsetsTopic
    partition = shape.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED,
        topics=[shape(name=TOPIC, partitions=[partition])],
    )
    (answer,) = await node.measure(request)
    assert answer.topics[0].partitions[0].offset == 0


@row("DescribeProducers of one partition", "open transactions", OPEN, "DescribeProducers")
async def describe_producers(node: MeteredNode, size: int) -> None:
    shape = DescribeProducersRequest.TopicRequest
    (answer,) = await node.measure(
        DescribeProducersRequest(topics=[shape(name=TOPIC, partition_indexes=[0])])
    )
    producers = answer.topics[0].partitions[0].active_producers
    assert sum(producer.current_txn_start_offset >= 0 for producer in producers) == size


@row("WriteTxnMarkers that end the first and the last", "open transactions", OPEN)
async def end(node: MeteredNode, size: int) -> None:
    shape = WriteTxnMarkersRequest.WritableTxnMarker
    topic = shape.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
    markers = [
        shape(
            producer_id=producer,
            producer_epoch=0,
            transaction_result=False,
            topics=[topic],
            coordinator_epoch=0,
        )
        for producer in (0, size - 1)
    ]
    await node.measure(WriteTxnMarkersRequest(markers=markers))
    partition = node.parts.replicas.partitions.get(TOPIC, 0)
    assert partition.last_stable_offset == 1


@row("loading of their coordinator", "open transactions", OPEN, "coordinator.loading._load_queued")
async def load(node: MeteredNode, size: int) -> None:
    service = node.parts.transactions().service
    with node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 1)
        await trio.sleep(10)
    answer = await node.call(ListTransactionsRequest())
    assert sum(each.transaction_state == "Ongoing" for each in answer.transaction_states) == size


@row(
    "ListTransactions",
    "open transactions",
    OPEN,
    "ListTransactions",
    after="loading of their coordinator",
)
async def list_transactions(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(ListTransactionsRequest(state_filters=["Ongoing"]))
    assert len(answer.transaction_states) == size


@row(
    "DescribeTransactions of all",
    "open transactions",
    OPEN,
    "DescribeTransactions",
    after="loading of their coordinator",
)
async def describe_transactions(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(DescribeTransactionsRequest(transactional_ids=NAMES))
    assert sum(bool(each.topics) for each in answer.transaction_states) == size


@row(
    "time-outs that pass together",
    "open transactions",
    OPEN,
    "coordinator.runtime._keep_deadlines",
    "coordinator.steps.run",
    after="loading of their coordinator",
)
async def time_out(node: MeteredNode, size: int) -> None:
    """The transactions are aborted, and the last stable offset moves to the end."""
    with node.meter.measuring():
        await trio.sleep(TIMEOUT_MS / 1000 + 30)
    answer = await node.call(ListTransactionsRequest(state_filters=["Ongoing"]))
    assert not answer.transaction_states
    partition = node.parts.replicas.partitions.get(TOPIC, 0)
    assert partition.last_stable_offset == partition.log.end_offset


@row("markers of transactions decided before a load", "transactions", OPEN)
async def finish_decided(node: MeteredNode, size: int) -> None:
    append_states(node, TransactionState.PREPARE_COMMIT, epoch=2)
    service = node.parts.transactions().service
    with node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 2)
        await trio.sleep(30)
    answer = await node.call(ListTransactionsRequest(state_filters=["CompleteCommit"]))
    assert len(answer.transaction_states) == size
