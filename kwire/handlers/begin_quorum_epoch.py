"""BeginQuorumEpoch (API key 53): a new leader of the quorum announces itself."""

from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(BeginQuorumEpochRequest)
async def begin_quorum_epoch(
    context: Context, request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, BeginQuorumEpochResponse)
