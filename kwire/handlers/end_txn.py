"""EndTxn (API key 26): commits or aborts a producer's transaction.

It is answered once the decision is durable, before the markers are visible. From version 5 onwards
the response contains the producer id and epoch for the next transaction, which uses a new epoch
(KIP-890).
"""

from kwire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from kwire.errors import InvalidRequest
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.shard import EndTransaction
from kwire.transaction.transitions import Producer


@handles(EndTxnRequest)
async def end_txn(context: Context, request: EndTxnRequest) -> EndTxnResponse:
    context.check_allowed("Write", "TransactionalId", request.transactional_id)
    if not request.transactional_id:
        raise InvalidRequest
    producer = await context.transactions.end(
        EndTransaction(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            request.client_version,
            request.committed,
        )
    )
    return EndTxnResponse(producer_id=producer.id, producer_epoch=producer.epoch)
