"""ListPartitionReassignments (API key 46): ongoing reassignments, of all topics if null."""

from collections.abc import Sequence

from kwire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import TopicImage

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment


@handles(ListPartitionReassignmentsRequest)
async def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    image = context.image
    found = []
    if request.topics is None:
        found = [_moving(topic, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        for asked in request.topics:
            topic = image.topic(asked.name)
            if topic is not None:
                found.append(_moving(topic, asked.partition_indexes))
    return ListPartitionReassignmentsResponse(topics=[one for one in found if one.partitions])


def _moving(topic: TopicImage, numbers: Sequence[int]) -> Topic:
    partitions = []
    for number in numbers:
        partition = topic.partitions.get(number)
        if partition is not None and partition.is_reassigning:
            partitions.append(
                Topic.OngoingPartitionReassignment(
                    partition_index=number,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding),
                    removing_replicas=list(partition.removing),
                )
            )
    return Topic(name=topic.name, partitions=partitions)
