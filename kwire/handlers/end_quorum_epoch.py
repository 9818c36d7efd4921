"""EndQuorumEpoch (API key 54): the quorum's leader resigns."""

from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(EndQuorumEpochRequest)
async def end_quorum_epoch(
    context: Context, request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, EndQuorumEpochResponse)
