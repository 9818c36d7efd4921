"""ConsumerGroupDescribe (API key 69): consumer groups with members; each group fails alone."""

from collections.abc import Iterable, Iterator

from kwire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kwire.errors import InvalidGroupId, KafkaError
from kwire.handlers.shared.consumer_groups import check_enabled
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.described_groups import describe_groups, refuse_group
from kwire.handlers.shared.handler import handles

Group = ConsumerGroupDescribeResponse.DescribedGroup


def refuse(
    request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    groups = [refuse_group(Group, group_id, error) for group_id in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)


@handles(ConsumerGroupDescribeRequest, refuse=refuse)
async def consumer_group_describe(
    context: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    check_enabled(context)

    async def describe(group_id: str) -> Group:
        if not group_id:
            raise InvalidGroupId
        return await context.groups.describe_consumer_group(group_id)

    groups = await describe_groups(context, request, Group, describe, _topics_of)
    return ConsumerGroupDescribeResponse(groups=groups)


def _topics_of(group: Group) -> Iterator[Iterable[str]]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            yield (topic.topic_name for topic in assignment.topic_partitions)
