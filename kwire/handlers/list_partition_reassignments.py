"""ListPartitionReassignments (API key 46): ongoing reassignments, of all topics if null."""

from collections.abc import Sequence

from kwire import errors
from kwire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.metadata.image import TopicImage

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment


def failed(
    request: ListPartitionReassignmentsRequest, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.text)


@handles(ListPartitionReassignmentsRequest, failed=failed)
async def list_partition_reassignments(
    context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not context.authorize("Describe", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
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
