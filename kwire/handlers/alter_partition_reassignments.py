"""AlterPartitionReassignments (API key 45): starts reassignments, or (with null) cancels them."""

from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.partitions import decide_reassign

Topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Partition = Topic.ReassignablePartitionResponse


def refuse(
    request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    topics = [
        Topic(
            name=topic.name,
            partitions=[
                Partition(
                    partition_index=partition.partition_index,
                    error_code=error.code,
                    error_message=error.text,
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.text, responses=topics
    )


@handles(AlterPartitionReassignmentsRequest, refuse=refuse)
async def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await context.decide(decide_reassign, request)
