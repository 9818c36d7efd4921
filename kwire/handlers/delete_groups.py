"""DeleteGroups (API key 42): deletes groups without members, and all their offsets."""

from kwire.codec.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kwire.drive import Slices, give_way
from kwire.errors import GroupAuthorizationFailed, KafkaError
from kwire.group import deletion
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

Result = DeleteGroupsResponse.DeletableGroupResult


def refuse(request: DeleteGroupsRequest, error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[Result(group_id=name, error_code=error.code) for name in request.groups_names]
    )


@handles(DeleteGroupsRequest, refuse=refuse)
async def delete_groups(context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    await give_way()  # Decoding thousands of names has taken a whole slice.
    names = list(dict.fromkeys(request.groups_names))
    allowed = []
    slices = Slices(context.clock.now)
    for name in names:
        await slices.pause()
        if context.is_allowed("Delete", "Group", name):
            allowed.append(name)
    deletions = await deletion.delete_groups(context.groups, allowed)
    results = {result.group_id: result for result in deletions}
    refused = GroupAuthorizationFailed.code
    return DeleteGroupsResponse(
        results=[results.get(name) or Result(group_id=name, error_code=refused) for name in names]
    )
