"""Requests about transactions over 10,000 partitions."""

from typing import Final

import trio

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.end_txn import EndTxnRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest
from kwire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from kwire.transaction.transitions import Producer
from tests.support.turns.node import MeteredNode
from tests.turns.partitions import ALL, NAMES, PARTITIONED, PARTITIONS

LARGE: Final = "large"
PARTITIONED_WITH_TRANSACTIONS: Final = PARTITIONED
"""The scene of the partitions, with the rows of this module: they need as many partitions."""
row = PARTITIONED.operation


def init(name: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)


async def producer_of(node: MeteredNode, name: str) -> Producer:
    """Return the next producer of a transactional id; transactions of the last one are aborted.

    The first producer has the topic of the coordinators created.
    """
    await node.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]))
    while True:
        answer = await node.call(init(name), 4)
        if not answer.error_code:
            return Producer(answer.producer_id, answer.producer_epoch)
        await trio.sleep(1)


def add_all(name: str, producer: Producer) -> AddPartitionsToTxnRequest:
    """Return the request that adds all partitions to a transaction."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=list(range(PARTITIONS)))
            for topic in NAMES
        ],
    )


async def begin_large(node: MeteredNode) -> Producer:
    """Begin a transaction of all partitions."""
    producer = await producer_of(node, LARGE)
    await node.call(add_all(LARGE, producer), 3)
    return producer


@row("AddPartitionsToTxn", "partitions", ALL, "AddPartitionsToTxn")
async def add_partitions(node: MeteredNode, size: int) -> None:
    producer = await producer_of(node, LARGE)
    (answer,) = await node.measure(add_all(LARGE, producer), version=3)
    topics = answer.results_by_topic_v3_and_below
    assert not any(p.partition_error_code for topic in topics for p in topic.results_by_partition)


@row("DescribeTransactions of one", "partitions", ALL, "DescribeTransactions")
async def describe_large(node: MeteredNode, size: int) -> None:
    await begin_large(node)
    (answer,) = await node.measure(DescribeTransactionsRequest(transactional_ids=[LARGE]))
    assert sum(len(topic.partitions) for topic in answer.transaction_states[0].topics) == size


@row("InitProducerId that aborts a transaction", "partitions", ALL, "InitProducerId")
async def abort(node: MeteredNode, size: int) -> None:
    await begin_large(node)
    await node.measure(init(LARGE), version=4)
    await trio.sleep(5)  # The markers are written as after EndTxn.


@row("EndTxn and its markers", "partitions", ALL, "EndTxn")
async def end(node: MeteredNode, size: int) -> None:
    producer = await begin_large(node)
    request = EndTxnRequest(
        transactional_id=LARGE,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=True,
    )
    (answer,) = await node.measure(request, version=3)
    assert not answer.error_code
    with node.meter.measuring():
        await trio.sleep(5)


@row("WriteTxnMarkers", "partitions", ALL, "WriteTxnMarkers")
async def write_markers(node: MeteredNode, size: int) -> None:
    shape = WriteTxnMarkersRequest.WritableTxnMarker
    topics = [
        shape.WritableTxnMarkerTopic(name=name, partition_indexes=list(range(PARTITIONS)))
        for name in NAMES
    ]
    marker = shape(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=0,
    )
    (answer,) = await node.measure(WriteTxnMarkersRequest(markers=[marker]))
    assert sum(len(topic.partitions) for topic in answer.markers[0].topics) == size


@row("TxnOffsetCommit", "offsets", ALL, "TxnOffsetCommit")
async def commit_offsets(node: MeteredNode, size: int) -> None:
    await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[LARGE]))
    await trio.sleep(10)
    producer = await producer_of(node, LARGE)
    shape = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = shape.TxnOffsetCommitRequestPartition
    topics = [
        shape(
            name=name,
            partitions=[
                partition(partition_index=index, committed_offset=1, committed_metadata="")
                for index in range(PARTITIONS)
            ],
        )
        for name in NAMES
    ]
    request = TxnOffsetCommitRequest(
        transactional_id=LARGE,
        group_id=LARGE,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=topics,
    )
    (answer,) = await node.measure(request, version=5)
    assert not any(p.error_code for topic in answer.topics for p in topic.partitions)
    end_request = EndTxnRequest(
        transactional_id=LARGE,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=True,
    )
    await node.measure(end_request, version=5)
    with node.meter.measuring():
        await trio.sleep(5)
