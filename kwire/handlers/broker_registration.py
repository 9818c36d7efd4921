"""BrokerRegistration (API key 62): a broker that starts registers with the controller."""

from kwire import errors
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.brokers import decide_register_broker


def failed(request: BrokerRegistrationRequest, error: KafkaError) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=error.code)


@handles(BrokerRegistrationRequest, failed=failed)
async def broker_registration(
    context: Context, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.controller.call(decide_register_broker, request)
