"""BeginQuorumEpoch (API key 53): a new leader of the quorum announces itself."""

from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: BeginQuorumEpochRequest, error: KafkaError) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error_code=error.code)


@handles(BeginQuorumEpochRequest, failed=failed)
async def begin_quorum_epoch(
    context: Context, request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, BeginQuorumEpochResponse)
