"""OffsetDelete (API key 47): deletes a group's offsets for topics that it reads no longer."""

from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.errors import (
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

Asked = OffsetDeleteRequest.OffsetDeleteRequestTopic
Spot = Asked.OffsetDeleteRequestPartition
Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Done = Topic.OffsetDeleteResponsePartition


@handles(OffsetDeleteRequest)
async def offset_delete(context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    context.check_allowed("Delete", "Group", request.group_id)
    errors = {
        (topic.name, spot.partition_index): _error(context, topic.name, spot.partition_index)
        for topic in request.topics
        for spot in topic.partitions
    }
    known = [
        Asked(
            name=topic.name,
            partitions=[p for p in topic.partitions if not errors[_spot(topic, p)]],
        )
        for topic in request.topics
    ]
    reply = await context.groups.delete_offsets(
        OffsetDeleteRequest(group_id=request.group_id, topics=known)
    )
    codes = {
        (topic.name, spot.partition_index): spot.error_code
        for topic in reply.topics
        for spot in topic.partitions
    }

    def answer(topic: Asked) -> Topic:
        return Topic(
            name=topic.name,
            partitions=[
                Done(
                    partition_index=spot.partition_index,
                    error_code=errors[_spot(topic, spot)] or codes[_spot(topic, spot)],
                )
                for spot in topic.partitions
            ],
        )

    return OffsetDeleteResponse(topics=[answer(topic) for topic in request.topics])


def _spot(topic: Asked, spot: Spot) -> tuple[str, int]:
    return topic.name, spot.partition_index


def _error(context: Context, topic: str, partition: int) -> int:
    """Return the error code that refuses this partition; 0 if the coordinator must be asked."""
    if not context.is_allowed("Read", "Topic", topic):
        return TopicAuthorizationFailed.code
    found = context.image.topic(topic)
    if found is None or partition not in found.partitions:
        return UnknownTopicOrPartition.code
    return 0
