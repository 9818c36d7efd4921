"""Vote (API key 52): a voter requests a vote or, in a pre-vote, asks whether it would get one."""

from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(VoteRequest)
async def vote(context: Context, request: VoteRequest) -> VoteResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, VoteResponse)
