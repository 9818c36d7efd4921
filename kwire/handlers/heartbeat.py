"""Heartbeat (API key 12): a member reports that it is alive, and is notified of rebalances."""

from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


@handles(HeartbeatRequest)
async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return await context.groups.heartbeat(request)
