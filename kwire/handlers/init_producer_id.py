"""InitProducerId (API key 22): an id for an idempotent producer.

Without a transactional id every request gets a fresh id with epoch 0, whatever id it names, as
in Kafka. With one it is refused: transactions are not available, and every client takes
UNSUPPORTED_VERSION as final (a coordinator error would make it retry for ever).
"""

from kwire.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.errors import (
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles


def refuse(request: InitProducerIdRequest, error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, refuse=refuse)
async def init_producer_id(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        context.check_allowed("Write", "TransactionalId", transactional_id)
        if not transactional_id:
            raise InvalidRequest
        raise UnsupportedVersion("transactions are not available")
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise InvalidRequest("an id without its epoch, or the reverse")
    context.check_allowed("IdempotentWrite", "Cluster", CLUSTER)
    producer_id = await context.services.producer_ids.take()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
