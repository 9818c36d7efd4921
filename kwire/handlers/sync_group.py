"""SyncGroup (API key 14): the group's leader sends the assignments, every member gets its own."""

from kwire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kwire.errors import GroupAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: SyncGroupRequest, error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code, assignment=b"")


@handles(SyncGroupRequest, failed=failed)
async def sync_group(context: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    if not context.authorize("Read", "Group", request.group_id):
        raise GroupAuthorizationFailed
    return await context.groups.sync(request)
