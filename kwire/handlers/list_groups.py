"""ListGroups (API key 16): the groups this node coordinates, by state and type."""

from kwire.codec.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: ListGroupsRequest, error: KafkaError) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error.code)


@handles(ListGroupsRequest, failed=failed)
async def list_groups(context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = await context.groups.listed(request.states_filter, request.types_filter)
    if not context.authorize("Describe", "Cluster", "kafka-cluster"):
        groups = [g for g in groups if context.authorize("Describe", "Group", g.group_id)]
    return ListGroupsResponse(groups=groups)
