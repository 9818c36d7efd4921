"""ShareGroupDescribe (API key 77): share groups and their members; each group fails alone."""

from kwire.codec.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kwire.drive import Slices
from kwire.errors import GroupIdNotFound, InvalidGroupId, KafkaError, TopicAuthorizationFailed
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.share_groups import check_enabled

Group = ShareGroupDescribeResponse.DescribedGroup


def _refuse_group(group_id: str, error: KafkaError) -> Group:
    text = error.text if isinstance(error, (GroupIdNotFound, TopicAuthorizationFailed)) else None
    return Group(
        error_code=error.code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def refuse(request: ShareGroupDescribeRequest, error: KafkaError) -> ShareGroupDescribeResponse:
    groups = [_refuse_group(group_id, error) for group_id in request.group_ids]
    return ShareGroupDescribeResponse(groups=groups)


@handles(ShareGroupDescribeRequest, refuse=refuse)
async def share_group_describe(
    context: Context, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    check_enabled(context)

    async def answer(group_id: str) -> Group:
        try:
            context.check_allowed("Describe", "Group", group_id)
            if not group_id:
                raise InvalidGroupId
            group = await context.groups.share.describe(group_id)
            await _check_topics(context, group)
        except KafkaError as error:
            return _refuse_group(group_id, error)
        if request.include_authorized_operations:
            group.authorized_operations = authorized_operations(context, "Group", group_id)
        return group

    response = ShareGroupDescribeResponse(groups=[])
    slices = Slices()
    for group_id in request.group_ids:
        response.groups.append(await answer(group_id))
        await slices.pause()
    return response


async def _check_topics(context: Context, group: Group) -> None:
    """Reject a description that names a topic which the client may not describe."""
    checked: set[str] = set()
    slices = Slices()
    for member in group.members:
        for topic in member.assignment.topic_partitions:
            name = topic.topic_name
            if name not in checked and not context.is_allowed("Describe", "Topic", name):
                raise TopicAuthorizationFailed(
                    "The group has described topic(s) that the client "
                    "is not authorized to describe."
                )
            checked.add(name)
        await slices.pause()
