"""UpdateRaftVoter (API key 82): a voter reports its addresses and kraft.version."""

from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: UpdateRaftVoterRequest, error: KafkaError) -> UpdateRaftVoterResponse:
    return UpdateRaftVoterResponse(error_code=error.code)


@handles(UpdateRaftVoterRequest, failed=failed)
async def update_raft_voter(
    context: Context, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, UpdateRaftVoterResponse)
