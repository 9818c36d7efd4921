"""Heartbeat (API key 12): a member reports that it is alive, and learns of rebalances."""

from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.errors import GroupAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: HeartbeatRequest, error: KafkaError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)


@handles(HeartbeatRequest, failed=failed)
async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    if not context.authorize("Read", "Group", request.group_id):
        raise GroupAuthorizationFailed
    return await context.groups.heartbeat(request)
