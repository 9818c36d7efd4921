"""ShareGroupDescribe (API key 77): share groups and their members; each group fails alone."""

from collections.abc import Iterable, Iterator

from kwire.codec.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.described_groups import describe_groups, refusing
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_share_groups

Group = ShareGroupDescribeResponse.DescribedGroup


@handles(ShareGroupDescribeRequest, refuse=refusing(ShareGroupDescribeResponse, Group))
async def share_group_describe(
    context: Context, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    check_share_groups(context)
    groups = await describe_groups(
        context, request, Group, context.groups.share.describe, _topics_of
    )
    return ShareGroupDescribeResponse(groups=groups)


def _topics_of(group: Group) -> Iterator[Iterable[str]]:
    for member in group.members:
        yield (topic.topic_name for topic in member.assignment.topic_partitions)
