"""Heartbeat (API key 12): a member reports that it is alive, and is notified of rebalances."""

from typing import Final

from kwire.codec.emit_flat import Values
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.group import usual_requests
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.waits import Slow


def heartbeat_values(
    context: Context, group_id: str, generation: int, member_id: str
) -> Values | None:
    """Answer a heartbeat that only moves the deadline of the member's session."""
    context.check_allowed("Read", "Group", group_id)
    code = usual_requests.heartbeat(context.groups, group_id, generation, member_id)
    return None if code is None else (code,)


_FLAT: Final = Flat(
    function=heartbeat_values, since=3, response_fields=("error_code", "throttle_time_ms")
)


@handles(HeartbeatRequest, flat=_FLAT)
def heartbeat(
    context: Context, request: HeartbeatRequest
) -> Slow[HeartbeatResponse] | HeartbeatResponse:
    context.check_allowed("Read", "Group", request.group_id)
    return context.groups.heartbeat(request)
