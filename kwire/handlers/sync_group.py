"""SyncGroup (API key 14): the leader sends all assignments, and each member receives its own."""

from kwire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kwire.errors import KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


def refuse(request: SyncGroupRequest, error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code, assignment=b"")


@handles(SyncGroupRequest, refuse=refuse)
async def sync_group(context: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return await context.groups.sync(request)
