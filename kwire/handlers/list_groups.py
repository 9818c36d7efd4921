"""ListGroups (API key 16): the groups that this node coordinates, by state and type."""

from kwire.codec.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles


@handles(ListGroupsRequest)
async def list_groups(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = await context.groups.list_groups(request.states_filter, request.types_filter)
    if not context.is_allowed("Describe", "Cluster", CLUSTER):
        groups = [g for g in groups if context.is_allowed("Describe", "Group", g.group_id)]
    return ListGroupsResponse(groups=groups)
