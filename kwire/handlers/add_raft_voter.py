"""AddRaftVoter (API key 80): adds a controller to the quorum's voters."""

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: AddRaftVoterRequest, error: KafkaError) -> AddRaftVoterResponse:
    return AddRaftVoterResponse(error_code=error.code)


@handles(AddRaftVoterRequest, failed=failed)
async def add_raft_voter(context: Context, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    if not context.authorize("Alter", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, AddRaftVoterResponse)
