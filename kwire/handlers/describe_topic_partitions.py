"""DescribeTopicPartitions (API key 75): topics in pages, with eligible leader replicas.

Topics are sorted by name. A page ends at the partition limit; its cursor is the start of the next
page. A named topic that does not exist gets an error.
"""

from kwire import errors
from kwire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.client_view import ClientView, unknown_topic_code
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import TopicImage
from kwire.types import INTERNAL_TOPICS, ZERO_UUID

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = Topic.DescribeTopicPartitionsResponsePartition
Cursor = DescribeTopicPartitionsResponse.Cursor


def refuse(
    request: DescribeTopicPartitionsRequest, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    topics = [
        Topic(error_code=error.code, name=topic.name, topic_id=ZERO_UUID)
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=topics)


@handles(DescribeTopicPartitionsRequest, refuse=refuse)
async def describe_topic_partitions(
    context: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = context.image
    is_all = not request.topics
    named = {topic.name for topic in request.topics} or set(image.topic_ids)
    cursor = request.cursor
    first_topic, first_partition = (
        ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    )
    if cursor is not None and not is_all and first_topic not in named:
        raise errors.InvalidRequest(
            f"The cursor's topic is not among the requested topics: {first_topic}"
        )
    if first_partition < 0:
        raise errors.InvalidRequest(f"The cursor's partition is negative: {first_partition}")
    limit = context.config.max_request_partition_size_limit
    remaining = max(1, min(limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    slices, view = Slices(context.clock.now), ClientView(image, context.listener)
    denied = []
    for name in sorted(name for name in named if name >= first_topic):
        if not context.is_allowed("Describe", "Topic", name):
            await slices.pause()
            if not is_all:
                denied.append(_refuse_topic(name, errors.TopicAuthorizationFailed.code))
            continue
        if remaining == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topic(name)
        if topic is None:
            unknown = _refuse_topic(name, unknown_topic_code(name))
            unknown.topic_authorized_operations = authorized_operations(context, "Topic", name)
            response.topics.append(unknown)
            continue
        start = first_partition if name == first_topic else 0
        described = await _topic(context, view, topic, start, remaining, slices)
        response.topics.append(described)
        remaining -= len(described.partitions)
        if start + len(described.partitions) < len(topic.partitions):
            end = start + len(described.partitions)
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    response.topics += denied
    return response


def _refuse_topic(name: str, code: int) -> Topic:
    return Topic(
        error_code=code, name=name, topic_id=ZERO_UUID, is_internal=name in INTERNAL_TOPICS
    )


async def _topic(
    context: Context,
    view: ClientView,
    topic: TopicImage,
    start: int,
    limit: int,
    slices: Slices,
) -> Topic:
    partitions = []
    for index in range(start, min(start + limit, len(topic.partitions))):
        partition_image = topic.partitions[index]
        partition = view.describe(Partition, index, partition_image)
        partition.eligible_leader_replicas = list(partition_image.elr)
        partition.last_known_elr = list(partition_image.last_known_elr)
        partitions.append(partition)
        await slices.pause()
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=authorized_operations(context, "Topic", topic.name),
    )
