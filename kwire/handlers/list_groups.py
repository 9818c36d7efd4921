"""ListGroups (API key 16): the groups that this node coordinates, by state and type."""

from kwire.codec.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kwire.drive import Slices
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles


@handles(ListGroupsRequest)
async def list_groups(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = await context.groups.list_groups(request.states_filter, request.types_filter)
    if not context.is_allowed("Describe", "Cluster", CLUSTER):
        slices = Slices(context.clock.now)
        all_groups, groups = groups, []
        for group in all_groups:
            await slices.pause()
            if context.is_allowed("Describe", "Group", group.group_id):
                groups.append(group)
    return ListGroupsResponse(groups=groups)
