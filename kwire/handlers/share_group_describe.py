"""ShareGroupDescribe (API key 77): share groups and their members; each group fails alone."""

from collections.abc import Iterable, Iterator

from kwire.codec.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kwire.errors import InvalidGroupId, KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.described_groups import describe_groups, refuse_group
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.share_groups import check_enabled

Group = ShareGroupDescribeResponse.DescribedGroup


def refuse(request: ShareGroupDescribeRequest, error: KafkaError) -> ShareGroupDescribeResponse:
    groups = [refuse_group(Group, group_id, error) for group_id in request.group_ids]
    return ShareGroupDescribeResponse(groups=groups)


@handles(ShareGroupDescribeRequest, refuse=refuse)
async def share_group_describe(
    context: Context, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    check_enabled(context)

    async def describe(group_id: str) -> Group:
        if not group_id:
            raise InvalidGroupId
        return await context.groups.share.describe(group_id)

    groups = await describe_groups(context, request, Group, describe, _topics_of)
    return ShareGroupDescribeResponse(groups=groups)


def _topics_of(group: Group) -> Iterator[Iterable[str]]:
    for member in group.members:
        yield (topic.topic_name for topic in member.assignment.topic_partitions)
