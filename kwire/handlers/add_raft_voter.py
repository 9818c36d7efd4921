"""AddRaftVoter (API key 80): adds a controller to the quorum's voters."""

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(AddRaftVoterRequest)
async def add_raft_voter(context: Context, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await ask_quorum(context, request, AddRaftVoterResponse)
