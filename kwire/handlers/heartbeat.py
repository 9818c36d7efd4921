"""Heartbeat (API key 12): a member reports that it is alive, and is notified of rebalances."""

from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.waits import Slow


@handles(HeartbeatRequest)
def heartbeat(
    context: Context, request: HeartbeatRequest
) -> Slow[HeartbeatResponse] | HeartbeatResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return context.groups.heartbeat(request)
