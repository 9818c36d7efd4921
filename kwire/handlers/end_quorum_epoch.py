"""EndQuorumEpoch (API key 54): the quorum's leader resigns."""

from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: EndQuorumEpochRequest, error: KafkaError) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error_code=error.code)


@handles(EndQuorumEpochRequest, failed=failed)
async def end_quorum_epoch(
    context: Context, request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, EndQuorumEpochResponse)
