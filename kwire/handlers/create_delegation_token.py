"""CreateDelegationToken (API key 38): creates a token whose bearer acts as its owner."""

from kwire.codec.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kwire.errors import DelegationTokenAuthorizationFailed, InvalidPrincipalType, KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.token_requests import check_token_requests, decide
from kwire.raftmeta.controller.delegation_tokens import decide_create_token, owner_of
from kwire.security.delegation_tokens import USER


def refuse(
    request: CreateDelegationTokenRequest, error: KafkaError
) -> CreateDelegationTokenResponse:
    return _refusal(request, error, ("", ""))


@handles(CreateDelegationTokenRequest, refuse=refuse, calls_controller=True)
async def create_delegation_token(
    context: Context, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    owner = owner_of(request, *context.principal)
    try:
        check_token_requests(context)
        is_own = owner == context.principal
        if not is_own and not context.is_allowed("CreateTokens", "User", ":".join(owner)):
            raise DelegationTokenAuthorizationFailed
        if owner[0] != USER or any(each.principal_type != USER for each in request.renewers):
            raise InvalidPrincipalType
        return await decide(context, decide_create_token, request)
    except KafkaError as error:
        return _refusal(request, error, context.principal)


def _refusal(
    request: CreateDelegationTokenRequest, error: KafkaError, principal: tuple[str, str]
) -> CreateDelegationTokenResponse:
    kind, name = owner_of(request, *principal)
    return CreateDelegationTokenResponse(
        error_code=error.code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=principal[0],
        token_requester_principal_name=principal[1],
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )
