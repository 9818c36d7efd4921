"""ListPartitionReassignments (API key 46): reassignments in progress; for all topics if null."""

from collections.abc import Sequence

from kwire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kwire.drive import Slices
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import TopicImage

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment


@handles(ListPartitionReassignmentsRequest)
async def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    image, slices = context.image, Slices()
    topics = []
    if request.topics is None:
        topics = [
            await _reassigning(topic, range(len(topic.partitions)), slices)
            for topic in image.topics.values()
        ]
    else:
        for requested in request.topics:
            named = image.topic(requested.name)
            if named is not None:
                topics.append(await _reassigning(named, requested.partition_indexes, slices))
    return ListPartitionReassignmentsResponse(
        topics=[topic for topic in topics if topic.partitions]
    )


async def _reassigning(topic: TopicImage, indexes: Sequence[int], slices: Slices) -> Topic:
    partitions = []
    for index in indexes:
        partition = topic.partitions.get(index)
        if partition is not None and partition.is_reassigning:
            partitions.append(
                Topic.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding),
                    removing_replicas=list(partition.removing),
                )
            )
        await slices.pause()
    return Topic(name=topic.name, partitions=partitions)
