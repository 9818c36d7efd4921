"""UnregisterBroker (API key 64): removes the registration of a broker that will not come back."""

from kwire import errors
from kwire.codec.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.brokers import decide_unregister_broker


def failed(request: UnregisterBrokerRequest, error: KafkaError) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code, error_message=error.text)


@handles(UnregisterBrokerRequest, failed=failed)
async def unregister_broker(
    context: Context, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    if not context.authorize("Alter", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.decide(decide_unregister_broker, request)
