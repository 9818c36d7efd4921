"""OffsetDelete (API key 47): deletes a group's offsets for topics that it no longer reads."""

from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.drive import Slices
from kwire.errors import TopicAuthorizationFailed, UnknownTopicOrPartition
from kwire.group.deletion import delete_offsets
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import TopicImage

RequestTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
ResponsePartition = OffsetDeleteResponse.OffsetDeleteResponseTopic.OffsetDeleteResponsePartition


@handles(OffsetDeleteRequest)
async def offset_delete(context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    context.check_allowed("Delete", "Group", request.group_id)
    slices, image = Slices(), context.image
    allowed, errors = [], dict[tuple[str, int], int]()
    for topic in request.topics:
        partitions, topic_image = [], image.topic(topic.name)
        for partition in topic.partitions:
            number = partition.partition_index
            code = _error_code(context, topic_image, topic.name, number)
            errors[topic.name, number] = code
            if not code:
                partitions.append(partition)
            await slices.pause()
        allowed.append(RequestTopic(name=topic.name, partitions=partitions))
    reply = await delete_offsets(
        context.groups, OffsetDeleteRequest(group_id=request.group_id, topics=allowed)
    )
    for topic, answer in zip(request.topics, reply.topics, strict=True):
        answers, answer.partitions = iter(answer.partitions), []
        for partition in topic.partitions:
            number = partition.partition_index
            code = errors[topic.name, number]
            refusal = ResponsePartition(partition_index=number, error_code=code) if code else None
            answer.partitions.append(refusal or next(answers))
            await slices.pause()
    return reply


def _error_code(context: Context, image: TopicImage | None, topic: str, partition: int) -> int:
    """Return the error code that rejects this partition; 0 if the coordinator has to decide."""
    if not context.is_allowed("Read", "Topic", topic):
        return TopicAuthorizationFailed.code
    if image is None or partition not in image.partitions:
        return UnknownTopicOrPartition.code
    return 0
