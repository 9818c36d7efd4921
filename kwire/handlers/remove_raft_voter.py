"""RemoveRaftVoter (API key 81): removes a controller from the voters."""

from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(RemoveRaftVoterRequest)
async def remove_raft_voter(
    context: Context, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await ask_quorum(context, request, RemoveRaftVoterResponse)
