"""JoinGroup (API key 11): a client becomes a member, or a member joins the next generation.

The answer is sent when the generation begins, which may take the rebalance timeout.
"""

from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.errors import GroupAuthorizationFailed, KafkaError
from kwire.group.turn import Asker
from kwire.handlers.dispatch import Context, handles


def failed(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error.code, protocol_name=None, leader="", member_id=request.member_id
    )


@handles(JoinGroupRequest, failed=failed)
async def join_group(context: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    if not context.authorize("Read", "Group", request.group_id):
        raise GroupAuthorizationFailed
    asker = Asker(client_id=context.client_id, client_host=f"/{context.client_host}")
    return await context.groups.join(request, asker)
