"""JoinGroup (API key 11): a client becomes a member, or a member joins the next generation.

The response is sent when the generation begins, which may take the rebalance timeout.
"""

from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.errors import InvalidGroupId, InvalidSessionTimeout, KafkaError
from kwire.group.decision_builder import Client
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


def refuse(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    """Return Kafka's response, which repeats the member id only for two errors."""
    repeats_id = isinstance(error, (InvalidGroupId, InvalidSessionTimeout))
    return JoinGroupResponse(
        error_code=error.code,
        protocol_name=None,
        leader="",
        member_id=request.member_id if repeats_id else "",
    )


@handles(JoinGroupRequest, refuse=refuse)
async def join_group(context: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    context.check_allowed("Read", "Group", request.group_id)
    client = Client(client_id=context.client_id, client_host=f"/{context.client_host}")
    return await context.groups.join(request, client)
