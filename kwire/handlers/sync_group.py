"""SyncGroup (API key 14): the leader sends all assignments, and each member receives its own."""

from kwire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


@handles(SyncGroupRequest, refused={"assignment": b""})
async def sync_group(context: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return await context.groups.sync(request)
