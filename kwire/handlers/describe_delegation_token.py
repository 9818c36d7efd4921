"""DescribeDelegationToken (API key 41): the tokens that a client may see, with their passwords."""

from collections.abc import Generator

from kwire.codec.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kwire.codec.messages.metadata_records import DelegationTokenRecord
from kwire.configs.delegation_tokens import DelegationTokenConfig
from kwire.drive import run_in_slices
from kwire.errors import DelegationTokenAuthDisabled
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.token_requests import check_token_requests
from kwire.security.delegation_tokens import may_know, token_hmac

Token = DescribeDelegationTokenResponse.DescribedDelegationToken


@handles(DescribeDelegationTokenRequest)
async def describe_delegation_token(
    context: Context, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    check_token_requests(context)
    secret = DelegationTokenConfig(context.config.static).secret
    if not secret:
        raise DelegationTokenAuthDisabled
    return DescribeDelegationTokenResponse(
        tokens=await run_in_slices(_describe(context, request, secret))
    )


def _describe(
    context: Context, request: DescribeDelegationTokenRequest, secret: bytes
) -> Generator[None, None, list[Token]]:
    """Describe the tokens of the owners that a request names, or of all, step by step."""
    owners: set[str] | None = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    tokens = []
    for record in context.image.tokens.values() if owners is None or owners else ():
        holders = (record.owner, record.requester, *record.renewers)
        is_wanted = owners is None or not owners.isdisjoint(holders)
        if is_wanted and _is_allowed(context, record):
            tokens.append(_token(record, secret))
        yield
    return tokens


def _is_allowed(context: Context, record: DelegationTokenRecord) -> bool:
    return (
        may_know(record, ":".join(context.principal))
        or context.is_allowed("Describe", "DelegationToken", record.token_id)
        or context.is_allowed("DescribeTokens", "User", record.owner)
    )


def _token(record: DelegationTokenRecord, secret: bytes) -> Token:
    owner_type, _, owner = record.owner.partition(":")
    requester_type, _, requester = record.requester.partition(":")
    renewers = [renewer.partition(":") for renewer in record.renewers]
    return Token(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp=record.issue_timestamp,
        expiry_timestamp=record.expiration_timestamp,
        max_timestamp=record.max_timestamp,
        token_id=record.token_id,
        hmac=token_hmac(secret, record.token_id),
        renewers=[
            Token.DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, _, name in renewers
        ],
    )
