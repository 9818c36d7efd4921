"""ConsumerGroupDescribe (API key 69): consumer groups with members; each group fails alone."""

from collections.abc import Iterable, Iterator

from kwire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.described_groups import describe_groups, refusing
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_consumer_groups

Group = ConsumerGroupDescribeResponse.DescribedGroup


@handles(ConsumerGroupDescribeRequest, refuse=refusing(ConsumerGroupDescribeResponse, Group))
async def consumer_group_describe(
    context: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    check_consumer_groups(context)
    groups = await describe_groups(
        context, request, Group, context.groups.describe_consumer_group, _topics_of
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _topics_of(group: Group) -> Iterator[Iterable[str]]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            yield (topic.topic_name for topic in assignment.topic_partitions)
