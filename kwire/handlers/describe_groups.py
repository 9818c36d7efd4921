"""DescribeGroups (API key 15): classic groups with their members; each group fails alone.

The members' metadata is included while the group is stable, and their last assignments also while
it rebalances. The error for a group that does not exist, or that uses another protocol, is
GROUP_ID_NOT_FOUND.
"""

from kwire.codec.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kwire.drive import Slices
from kwire.errors import GroupIdNotFound, KafkaError
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

Group = DescribeGroupsResponse.DescribedGroup


def _refuse_group(group_id: str, error: KafkaError) -> Group:
    return Group(
        error_code=error.code,
        error_message=error.text,
        group_id=group_id,
        group_state="Dead" if error.code == GroupIdNotFound.code else "",
        protocol_type="",
        protocol_data="",
    )


def refuse(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_refuse_group(group, error) for group in request.groups])


@handles(DescribeGroupsRequest, refuse=refuse)
async def describe_groups(
    context: Context, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    async def answer(group_id: str) -> Group:
        try:
            context.check_allowed("Describe", "Group", group_id)
            group = await context.groups.describe(group_id)
        except GroupIdNotFound as error:
            group = _refuse_group(group_id, error)
        except KafkaError as error:
            return _refuse_group(group_id, error)
        if request.include_authorized_operations:
            group.authorized_operations = authorized_operations(context, "Group", group_id)
        return group

    response = DescribeGroupsResponse(groups=[])
    slices = Slices()
    for group in request.groups:
        response.groups.append(await answer(group))
        await slices.pause()
    return response
