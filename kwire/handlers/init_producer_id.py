"""InitProducerId (API key 22): assigns an id to an idempotent or transactional producer.

Without a transactional id, every request gets a new id with epoch 0, as in Kafka, even if it
contains an id; a client that may write to some topic needs no other permission. With a
transactional id the transaction coordinator decides. Two-phase commit (KIP-939) is rejected, as in
Kafka unless ``transaction.two.phase.commit.enable`` is set.
"""

from kwire.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles


@handles(InitProducerIdRequest, refused={"producer_id": -1, "producer_epoch": -1})
async def init_producer_id(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        context.check_allowed("Write", "TransactionalId", transactional_id)
    elif not context.is_allowed("IdempotentWrite", "Cluster", CLUSTER) and (
        not await context.is_some_allowed("Write", "Topic")
    ):
        raise ClusterAuthorizationFailed
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise InvalidRequest("a producer id without its epoch, or an epoch without its id")
    if transactional_id is not None:
        return await _initialize(context, request, transactional_id)
    producer_id = await context.broker.producer_ids.take()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _initialize(
    context: Context, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    if not transactional_id:
        raise InvalidRequest
    if request.enable2_pc:
        raise TransactionalIdAuthorizationFailed
    if request.keep_prepared_txn:
        raise UnsupportedVersion
    from kwire.transaction.transitions import Producer

    expected = None
    if request.producer_id != -1:
        expected = Producer(request.producer_id, request.producer_epoch)
    timeout_ms = request.transaction_timeout_ms
    producer = await context.transactions.initialize(transactional_id, timeout_ms, expected)
    return InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch)
