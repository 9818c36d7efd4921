"""ExpireDelegationToken (API key 40): removes a delegation token, or sets its expiry time."""

from kwire.codec.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.token_requests import check_token_requests, decide
from kwire.raftmeta.controller.delegation_tokens import decide_expire_token


@handles(ExpireDelegationTokenRequest, refused={"expiry_timestamp_ms": -1}, calls_controller=True)
async def expire_delegation_token(
    context: Context, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    check_token_requests(context)
    return await decide(context, decide_expire_token, request)
