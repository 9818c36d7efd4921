"""UnregisterBroker (API key 64): removes the registration of a broker that will not return."""

from kwire.codec.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.brokers import decide_unregister_broker


@handles(UnregisterBrokerRequest)
async def unregister_broker(
    context: Context, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await context.decide(decide_unregister_broker, request)
