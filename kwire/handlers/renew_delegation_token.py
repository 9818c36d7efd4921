"""RenewDelegationToken (API key 39): extends the lifetime of a delegation token."""

from kwire.codec.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.token_requests import check_token_requests, decide
from kwire.raftmeta.controller.delegation_tokens import decide_renew_token


@handles(RenewDelegationTokenRequest, refused={"expiry_timestamp_ms": -1}, calls_controller=True)
async def renew_delegation_token(
    context: Context, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    check_token_requests(context)
    return await decide(context, decide_renew_token, request)
