"""BrokerHeartbeat (API key 63): a broker reports that it is alive, and the state it wants."""

from kwire import errors
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.brokers import decide_heartbeat


def failed(request: BrokerHeartbeatRequest, error: KafkaError) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)


@handles(BrokerHeartbeatRequest, failed=failed)
async def broker_heartbeat(
    context: Context, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.controller.call(decide_heartbeat, request)
