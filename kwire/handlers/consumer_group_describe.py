"""ConsumerGroupDescribe (API key 69): consumer groups and their members; each group fails alone."""

from kwire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kwire.drive import Slices
from kwire.errors import GroupIdNotFound, KafkaError, TopicAuthorizationFailed
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.consumer_groups import check_enabled
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

Group = ConsumerGroupDescribeResponse.DescribedGroup


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


def refuse(
    request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    groups = [_refuse_group(group_id, error) for group_id in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)


@handles(ConsumerGroupDescribeRequest, refuse=refuse)
async def consumer_group_describe(
    context: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    check_enabled(context)

    async def answer(group_id: str) -> Group:
        try:
            context.check_allowed("Describe", "Group", group_id)
            group = await context.groups.describe_consumer_group(group_id)
            await _check_topics(context, group)
        except KafkaError as error:
            return _refuse_group(group_id, error)
        if request.include_authorized_operations:
            group.authorized_operations = authorized_operations(context, "Group", group_id)
        return group

    response = ConsumerGroupDescribeResponse(groups=[])
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
        topics = {
            topic.topic_name
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        for name in topics - checked:
            if not context.is_allowed("Describe", "Topic", name):
                raise TopicAuthorizationFailed(
                    "The group has described topic(s) that the client "
                    "is not authorized to describe."
                )
        checked |= topics
        await slices.pause()
