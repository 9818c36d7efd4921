"""LeaveGroup (API key 13): one or several members leave; each has its own result."""

from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


@handles(LeaveGroupRequest)
async def leave_group(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return await context.groups.leave(request)
