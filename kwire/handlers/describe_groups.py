"""DescribeGroups (API key 15): classic groups with their members; each fails alone.

The members' metadata is shown while the group is stable, their last assignments also while it
rebalances. A group that does not exist, or is of another protocol, is GROUP_ID_NOT_FOUND.
"""

from kwire.codec.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kwire.drive import Slices
from kwire.errors import GroupIdNotFound, KafkaError
from kwire.handlers.shared.authorized_operations import authorized_operations
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

Described = DescribeGroupsResponse.DescribedGroup


def _refused(group_id: str, error: KafkaError) -> Described:
    return Described(
        error_code=error.code,
        error_message=error.text,
        group_id=group_id,
        group_state="Dead" if error.code == GroupIdNotFound.code else "",
        protocol_type="",
        protocol_data="",
    )


def failed(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_refused(group, error) for group in request.groups])


@handles(DescribeGroupsRequest, failed=failed)
async def describe_groups(
    context: Context, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    async def answer(group_id: str) -> Described:
        try:
            context.check_allowed("Describe", "Group", group_id)
            group = await context.groups.describe(group_id)
        except GroupIdNotFound as error:
            group = _refused(group_id, error)
        except KafkaError as error:
            return _refused(group_id, error)
        if request.include_authorized_operations:
            group.authorized_operations = authorized_operations(context, "Group", group_id)
        return group

    response = DescribeGroupsResponse(groups=[])
    slices = Slices()
    for group in request.groups:
        response.groups.append(await answer(group))
        await slices.pause()
    return response
