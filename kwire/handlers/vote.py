"""Vote (API key 52): a voter asks another for its vote, or whether it would get it."""

from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: VoteRequest, error: KafkaError) -> VoteResponse:
    return VoteResponse(error_code=error.code)


@handles(VoteRequest, failed=failed)
async def vote(context: Context, request: VoteRequest) -> VoteResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, VoteResponse)
