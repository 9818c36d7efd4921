"""RemoveRaftVoter (API key 81): removes a controller from the voters."""

from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: RemoveRaftVoterRequest, error: KafkaError) -> RemoveRaftVoterResponse:
    return RemoveRaftVoterResponse(error_code=error.code)


@handles(RemoveRaftVoterRequest, failed=failed)
async def remove_raft_voter(
    context: Context, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    if not context.authorize("Alter", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, RemoveRaftVoterResponse)
