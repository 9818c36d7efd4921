"""OffsetDelete (API key 47): deletes a group's offsets for topics that it reads no longer."""

from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.errors import (
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

RequestTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
RequestPartition = RequestTopic.OffsetDeleteRequestPartition
ResponseTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
ResponsePartition = ResponseTopic.OffsetDeleteResponsePartition


@handles(OffsetDeleteRequest)
async def offset_delete(context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    context.check_allowed("Delete", "Group", request.group_id)
    errors = {
        (topic.name, partition.partition_index): _error_code(
            context, topic.name, partition.partition_index
        )
        for topic in request.topics
        for partition in topic.partitions
    }
    topics = [
        RequestTopic(
            name=topic.name,
            partitions=[p for p in topic.partitions if not errors[_key(topic, p)]],
        )
        for topic in request.topics
    ]
    reply = await context.groups.delete_offsets(
        OffsetDeleteRequest(group_id=request.group_id, topics=topics)
    )
    codes = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in reply.topics
        for partition in topic.partitions
    }

    def answer(topic: RequestTopic) -> ResponseTopic:
        return ResponseTopic(
            name=topic.name,
            partitions=[
                ResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=errors[_key(topic, partition)] or codes[_key(topic, partition)],
                )
                for partition in topic.partitions
            ],
        )

    return OffsetDeleteResponse(topics=[answer(topic) for topic in request.topics])


def _key(topic: RequestTopic, partition: RequestPartition) -> tuple[str, int]:
    return topic.name, partition.partition_index


def _error_code(context: Context, topic: str, partition: int) -> int:
    """Return the error code that refuses this partition; 0 if the coordinator must be asked."""
    if not context.is_allowed("Read", "Topic", topic):
        return TopicAuthorizationFailed.code
    image = context.image.topic(topic)
    if image is None or partition not in image.partitions:
        return UnknownTopicOrPartition.code
    return 0
