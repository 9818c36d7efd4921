"""AlterPartitionReassignments (API key 45): reassigns partitions, or (with null) cancels that."""

from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.partitions import decide_reassign


@handles(AlterPartitionReassignmentsRequest)
async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await context.decide(decide_reassign, request)
