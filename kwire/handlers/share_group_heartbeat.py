"""ShareGroupHeartbeat (API key 76): a member of a share group (KIP-932) joins or stays.

With the same request, a member leaves and changes its subscription; the response has its
assignment. As in Kafka, it is served from `share.version` 1 onwards.
"""

from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kwire.group.decision_builder import Client
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.served_groups import check_share_groups


@handles(ShareGroupHeartbeatRequest, refused={"member_epoch": 0, "heartbeat_interval_ms": 0})
async def share_group_heartbeat(
    context: Context, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    check_share_groups(context)
    context.check_allowed("Read", "Group", request.group_id)
    from kwire.group.share.heartbeat import check, check_member_id

    check_member_id(request)
    for name in request.subscribed_topic_names or ():
        context.check_allowed("Describe", "Topic", name)
    check(request)
    client = Client(client_id=context.client_id, client_host=f"/{context.client_host}")
    return await context.groups.share.heartbeat(request, client)
