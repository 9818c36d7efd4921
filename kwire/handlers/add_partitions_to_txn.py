"""AddPartitionsToTxn (API key 24): adds partitions to transactions, or verifies them.

Up to version 3 a producer sends it for its own transaction. From version 4 onwards a broker sends
it for producers that write to its partitions, for several transactions at once (KIP-890): all are
decided before the first commit is waited for. Each transaction fails or succeeds as a whole. If the
commit of one takes long, because a replica of its partition has ended, the others do not wait for
it: the broker has only one request under way.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kwire.drive import SLICE_SECONDS, Slices, run_together, run_within
from kwire.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    OperationNotAttempted,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.shard import AddPartitions
from kwire.transaction.transitions import Producer
from kwire.types import INTERNAL_TOPICS, TopicPartition

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
Codes = Mapping[TopicPartition, int]

_BROKER_VERSION: Final = 2
"""The `transaction.version` of producers whose partitions are added by brokers."""
_BROKER_WAIT_S: Final = 1.0
"""The longest wait for the commit of a broker's transaction; a broker waits for 3 s."""


@handles(AddPartitionsToTxnRequest)
async def add_partitions_to_txn(
    context: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if request.from_broker:
        context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    transactions = request.transactions
    slices = Slices()
    calls = [partial(_answer, context, t, request.from_broker) for t in transactions]
    codes = await run_together(calls)
    results = [
        await _result(transaction, codes_of, slices)
        for transaction, codes_of in zip(transactions, codes, strict=True)
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _answer(context: Context, transaction: Transaction, from_broker: bool) -> Codes:
    slices = Slices(seconds=SLICE_SECONDS / 2)  # The decision runs in the same turn.
    partitions = [
        TopicPartition(topic.name, index)
        for topic in transaction.topics
        for index in topic.partitions
    ]
    await slices.pause()
    allowed = from_broker or context.is_allowed(
        "Write", "TransactionalId", transaction.transactional_id
    )
    if not allowed:
        return dict.fromkeys(partitions, TransactionalIdAuthorizationFailed.code)
    codes = {}
    for partition in partitions:
        codes[partition] = _check(context, partition, from_broker)
        await slices.pause()
    if any(codes.values()):
        return {partition: code or OperationNotAttempted.code for partition, code in codes.items()}
    decide = partial(_decide, context, transaction, partitions, from_broker=from_broker)
    try:
        if from_broker:
            return await run_within(_BROKER_WAIT_S, decide, CoordinatorNotAvailable())
        return await decide()
    except KafkaError as error:
        return dict.fromkeys(partitions, error.code)


def _check(context: Context, partition: TopicPartition, from_broker: bool) -> int:
    """Return the error of a partition that cannot be added to a transaction."""
    topic = partition.topic
    if not from_broker and (
        topic in INTERNAL_TOPICS or not context.is_allowed("Write", "Topic", topic)
    ):
        return TopicAuthorizationFailed.code
    if context.image.partition(*partition) is None:
        return UnknownTopicOrPartition.code
    return NONE


async def _decide(
    context: Context,
    transaction: Transaction,
    partitions: list[TopicPartition],
    *,
    from_broker: bool,
) -> Codes:
    if not transaction.transactional_id:
        raise InvalidRequest
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return await context.transactions.verify(transaction.transactional_id, producer, partitions)
    await context.transactions.add_partitions(
        AddPartitions(
            transaction.transactional_id,
            producer,
            frozenset(partitions),
            client_version=_BROKER_VERSION if from_broker else 0,
        ),
        # The leader's guard may be older than a missing marker, so the leader has to ask again.
        repeat=not from_broker,
    )
    return dict.fromkeys(partitions, NONE)


async def _result(transaction: Transaction, codes: Codes, slices: Slices) -> Result:
    result = Result(transactional_id=transaction.transactional_id)
    for topic in transaction.topics:
        answers: list[AddPartitionsToTxnPartitionResult] = []
        result.topic_results.append(
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=answers)
        )
        for index in topic.partitions:
            code = codes[TopicPartition(topic.name, index)]
            answers.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
            await slices.pause()
    return result
