"""BrokerHeartbeat (API key 63): a broker reports that it is alive, and the state it wants."""

from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.brokers import decide_heartbeat


@handles(BrokerHeartbeatRequest, refused={"should_shut_down": False})
async def broker_heartbeat(
    context: Context, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_heartbeat, request)
