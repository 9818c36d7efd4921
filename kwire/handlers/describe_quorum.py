"""DescribeQuorum (API key 55): the metadata quorum's leader, voters and observers, with offsets."""

from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(DescribeQuorumRequest)
async def describe_quorum(
    context: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    return await ask_quorum(context, request, DescribeQuorumResponse)
