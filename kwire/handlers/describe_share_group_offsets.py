"""DescribeShareGroupOffsets (API key 90): start offsets and lags of share partitions.

A request without topics asks for all partitions with a state. As in Kafka, a group that does not
exist has no partitions, and a state that cannot be read has start offset -1 and no error.
"""

from kwire.codec.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaError, TopicAuthorizationFailed
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_share_groups
from kwire.types import ZERO_UUID

RequestedGroup = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
RequestedTopic = RequestedGroup.DescribeShareGroupOffsetsRequestTopic
Group = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
Topic = Group.DescribeShareGroupOffsetsResponseTopic
Partition = Topic.DescribeShareGroupOffsetsResponsePartition


def _refuse_group(group_id: str, error: KafkaError) -> Group:
    return Group(group_id=group_id, error_code=error.code, error_message=error.text, topics=[])


def refuse(
    request: DescribeShareGroupOffsetsRequest, error: KafkaError
) -> DescribeShareGroupOffsetsResponse:
    groups = [_refuse_group(group.group_id, error) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


def _refuse_topic(topic: RequestedTopic) -> Topic:
    return Topic(
        topic_name=topic.topic_name,
        topic_id=ZERO_UUID,
        partitions=[
            Partition(
                partition_index=number,
                start_offset=-1,
                leader_epoch=0,
                error_code=TopicAuthorizationFailed.code,
            )
            for number in topic.partitions
        ],
    )


@handles(DescribeShareGroupOffsetsRequest, refuse=refuse)
async def describe_share_group_offsets(
    context: Context, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    check_share_groups(context)

    async def answer(group: RequestedGroup) -> Group:
        try:
            context.check_allowed("Describe", "Group", group.group_id)
            return Group(group_id=group.group_id, topics=await _topics(context, group))
        except KafkaError as error:
            return _refuse_group(group.group_id, error)

    response = DescribeShareGroupOffsetsResponse(groups=[])
    slices = Slices()
    for group in request.groups:
        response.groups.append(await answer(group))
        await slices.pause()
    return response


async def _topics(context: Context, group: RequestedGroup) -> list[Topic]:
    share = context.groups.share
    if group.topics is None:
        described = await share.describe_all_offsets(group.group_id)
        return [t for t in described if context.is_allowed("Describe", "Topic", t.topic_name)]
    allowed, refused = dict[str, list[int]](), list[Topic]()
    for topic in group.topics:
        if context.is_allowed("Describe", "Topic", topic.topic_name):
            allowed[topic.topic_name] = topic.partitions
        else:
            refused.append(_refuse_topic(topic))
    return await share.describe_offsets(group.group_id, allowed) + refused
