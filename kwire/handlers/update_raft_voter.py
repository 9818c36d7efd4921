"""UpdateRaftVoter (API key 82): a voter reports its addresses and kraft.version."""

from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(UpdateRaftVoterRequest)
async def update_raft_voter(
    context: Context, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, UpdateRaftVoterResponse)
