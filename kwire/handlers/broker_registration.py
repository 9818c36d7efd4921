"""BrokerRegistration (API key 62): a starting broker registers with the controller."""

from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.brokers import decide_register_broker


@handles(BrokerRegistrationRequest)
async def broker_registration(
    context: Context, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_register_broker, request)
