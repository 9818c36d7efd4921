"""LeaveGroup (API key 13): one or several members leave; each has a result of its own."""

from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.errors import GroupAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: LeaveGroupRequest, error: KafkaError) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error.code)


@handles(LeaveGroupRequest, failed=failed)
async def leave_group(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if not context.authorize("Read", "Group", request.group_id):
        raise GroupAuthorizationFailed
    return await context.groups.leave(request)
