"""The decisions on delegation tokens (KIP-48): creation, renewal, expiry, and the periodic sweep.

The errors and their order are Apache Kafka's. A request to renew or expire a token identifies the
token by its HMAC, which the metadata do not contain: it is compared with that of each token, in
steps. Log lines and errors never show an HMAC.
"""

from collections.abc import Generator
from hmac import compare_digest
from typing import Final, NamedTuple

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kwire.codec.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kwire.codec.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kwire.configs.declare import LONG_MAX
from kwire.configs.delegation_tokens import DelegationTokenConfig
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.storage.levels import DELEGATION_TOKENS, level_of
from kwire.security.delegation_tokens import USER, is_expired, may_renew, token_hmac
from kwire.types import random_uuid, uuid_text

REMOVED_MAX: Final = 1000
"""The tokens that one decision removes."""


class TokenCaller(NamedTuple):
    """The client of a request about tokens, and the time of the request."""

    kind: str
    name: str
    now_ms: int

    @property
    def principal(self) -> str:
        return f"{self.kind}:{self.name}"


def decide_create_token(
    state: ControllerState, request: CreateDelegationTokenRequest, *, caller: TokenCaller
) -> ControllerDecision[CreateDelegationTokenResponse]:
    """Create a token for the client, or for the owner that it names."""
    kind, name = owner_of(request, caller.kind, caller.name)
    response = CreateDelegationTokenResponse(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=caller.kind,
        token_requester_principal_name=caller.name,
        issue_timestamp_ms=0,
        expiry_timestamp_ms=0,
        max_timestamp_ms=0,
        token_id="",
        hmac=b"",
    )
    try:
        config = _check_enabled(state)
        if any(renewer.principal_type != USER for renewer in request.renewers):
            raise errors.InvalidPrincipalType
    except errors.KafkaError as error:
        response.error_code = error.code
        return ControllerDecision((), response)
    now_ms, lifetime_ms = caller.now_ms, config.delegation_token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    response.issue_timestamp_ms = now_ms
    response.max_timestamp_ms = _sum(now_ms, lifetime_ms)
    response.expiry_timestamp_ms = min(
        response.max_timestamp_ms, _sum(now_ms, config.delegation_token_expiry_time_ms)
    )
    response.token_id = uuid_text(random_uuid(state.random.randbytes))
    response.hmac = token_hmac(config.secret, response.token_id)
    record = r.DelegationTokenRecord(
        owner=f"{kind}:{name}",
        requester=caller.principal,
        renewers=[f"{each.principal_type}:{each.principal_name}" for each in request.renewers],
        issue_timestamp=response.issue_timestamp_ms,
        max_timestamp=response.max_timestamp_ms,
        expiration_timestamp=response.expiry_timestamp_ms,
        token_id=response.token_id,
    )
    return ControllerDecision((record,), response)


def owner_of(request: CreateDelegationTokenRequest, kind: str, name: str) -> tuple[str, str]:
    """Return the type and name of a new token's owner: as requested, or else the client."""
    if not request.owner_principal_name:
        return kind, name
    return request.owner_principal_type or "", request.owner_principal_name


def decide_renew_token(
    state: ControllerState, request: RenewDelegationTokenRequest, *, caller: TokenCaller
) -> Steps[ControllerDecision[RenewDelegationTokenResponse]]:
    """Extend a token's lifetime, at most until its maximum."""
    try:
        config = _check_enabled(state)
        token = yield from _find(state, bytes(request.hmac), config.secret)
        if is_expired(token, caller.now_ms):
            raise errors.DelegationTokenExpired
        _check_may_renew(token, caller)
    except errors.KafkaError as error:
        refusal = RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0)
        return ControllerDecision((), refusal)
    period_ms = config.delegation_token_expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    expires_ms = min(token.max_timestamp, _sum(caller.now_ms, period_ms))
    response = RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
    return ControllerDecision((_expiring(token, expires_ms),), response)


def decide_expire_token(
    state: ControllerState, request: ExpireDelegationTokenRequest, *, caller: TokenCaller
) -> Steps[ControllerDecision[ExpireDelegationTokenResponse]]:
    """Remove a token, or set its expiry time."""
    now_ms, period_ms = caller.now_ms, request.expiry_time_period_ms
    try:
        config = _check_enabled(state)
        token = yield from _find(state, bytes(request.hmac), config.secret)
        _check_may_renew(token, caller)
        if period_ms >= 0 and is_expired(token, now_ms):
            raise errors.DelegationTokenExpired
    except errors.KafkaError as error:
        refusal = ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0)
        return ControllerDecision((), refusal)
    if period_ms < 0:
        removal = r.RemoveDelegationTokenRecord(token_id=token.token_id)
        return ControllerDecision(
            (removal,), ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms)
        )
    expires_ms = min(token.max_timestamp, _sum(now_ms, period_ms))
    response = ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
    return ControllerDecision((_expiring(token, expires_ms),), response)


def decide_remove_expired(state: ControllerState, now_ms: int) -> Steps[ControllerDecision[bool]]:
    """Remove expired tokens; the reply says whether more may remain."""
    records: list[r.MetadataRecord] = []
    for token in state.image.tokens.values():
        if len(records) >= REMOVED_MAX:
            return ControllerDecision(tuple(records), True)
        if is_expired(token, now_ms):
            records.append(r.RemoveDelegationTokenRecord(token_id=token.token_id))
        yield
    return ControllerDecision(tuple(records), False)


def _check_enabled(state: ControllerState) -> DelegationTokenConfig:
    config = DelegationTokenConfig(state.config.static)
    if not config.secret:
        raise errors.DelegationTokenAuthDisabled
    if level_of(state.image.features) < DELEGATION_TOKENS:
        raise errors.UnsupportedVersion
    return config


def _find(
    state: ControllerState, hmac: bytes, secret: bytes
) -> Generator[None, None, r.DelegationTokenRecord]:
    for token in state.image.tokens.values():
        if compare_digest(token_hmac(secret, token.token_id), hmac):
            return token
        yield
    raise errors.DelegationTokenNotFound


def _check_may_renew(token: r.DelegationTokenRecord, caller: TokenCaller) -> None:
    if not may_renew(token, caller.principal):
        raise errors.DelegationTokenOwnerMismatch


def _expiring(token: r.DelegationTokenRecord, expires_ms: int) -> r.DelegationTokenRecord:
    """Return the record of the same token with a new expiry time."""
    return r.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expires_ms,
        token_id=token.token_id,
    )


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, LONG_MAX)
