"""AddOffsetsToTxn (API key 25): adds the partition of a group's offsets to a transaction."""

from kwire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kwire.errors import InvalidRequest
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.shard import AddPartitions
from kwire.transaction.transitions import Producer
from kwire.types import CONSUMER_OFFSETS, TopicPartition


@handles(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(
    context: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    context.check_allowed("Write", "TransactionalId", request.transactional_id)
    context.check_allowed("Read", "Group", request.group_id)
    if not request.transactional_id:
        raise InvalidRequest
    partition = TopicPartition(CONSUMER_OFFSETS, context.groups.partition_of(request.group_id))
    await context.transactions.add_partitions(
        AddPartitions(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            frozenset({partition}),
            client_version=0,
        )
    )
    return AddOffsetsToTxnResponse()
