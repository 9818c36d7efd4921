"""DescribeQuorum (API key 55): the metadata quorum's leader, voters and observers, with offsets."""

from kwire import errors
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: DescribeQuorumRequest, error: KafkaError) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=error.code, error_message=error.text)


@handles(DescribeQuorumRequest, failed=failed)
async def describe_quorum(
    context: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    if not context.authorize("Describe", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await ask_quorum(context, request, DescribeQuorumResponse)
