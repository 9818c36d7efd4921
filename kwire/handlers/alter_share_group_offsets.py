"""AlterShareGroupOffsets (API key 91): sets the start offsets of a share group without members."""

from kwire.codec.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from kwire.errors import (
    InvalidGroupId,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_share_groups
from kwire.types import ZERO_UUID

RequestedTopic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
Topic = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
Partition = Topic.AlterShareGroupOffsetsResponsePartition


@handles(AlterShareGroupOffsetsRequest)
async def alter_share_group_offsets(
    context: Context, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    check_share_groups(context)
    context.check_allowed("Read", "Group", request.group_id)
    if not request.group_id:
        raise InvalidGroupId
    refused: list[Topic] = []
    offsets: dict[str, dict[int, int]] = {}
    ids = context.image.topic_ids
    for topic in request.topics:
        name = topic.topic_name
        if not context.is_allowed("Read", "Topic", name):
            topic_id = ids.get(name, ZERO_UUID)
            refused.append(_refuse_topic(topic, topic_id, TopicAuthorizationFailed.code))
        elif name not in ids:
            refused.append(_refuse_topic(topic, ZERO_UUID, UnknownTopicOrPartition.code))
        else:
            offsets[name] = {p.partition_index: p.start_offset for p in topic.partitions}
    altered = await context.groups.share.alter_offsets(request.group_id, offsets)
    return AlterShareGroupOffsetsResponse(responses=refused + altered)


def _refuse_topic(topic: RequestedTopic, topic_id: bytes, code: int) -> Topic:
    return Topic(
        topic_name=topic.topic_name,
        topic_id=topic_id,
        partitions=[
            Partition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )
