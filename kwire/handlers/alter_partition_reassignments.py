"""AlterPartitionReassignments (API key 45): moves partitions, or (with null) stops moving them."""

from kwire import errors
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.partitions import decide_reassign


def failed(
    request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.text)


@handles(AlterPartitionReassignmentsRequest, failed=failed)
async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not context.authorize("Alter", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.decide(decide_reassign, request)
