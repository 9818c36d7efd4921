"""The controller's decisions on delegation tokens (KIP-48)."""

from random import Random
from typing import Any

import attrs

from kwire.codec.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.codec.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.codec.messages.renew_delegation_token import RenewDelegationTokenRequest
from kwire.raftmeta.controller.delegation_tokens import (
    REMOVED_MAX,
    TokenCaller,
    decide_create_token,
    decide_expire_token,
    decide_remove_expired,
    decide_renew_token,
)
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.state import ControllerState, whole
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_records import image_records
from kwire.security.delegation_tokens import token_hmac
from tests.support.raftmeta.clusters import CLUSTER, node_config

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SECRET = {"delegation.token.secret.key": "secret"}
AUTH_DISABLED, NOT_FOUND, OWNER_MISMATCH, EXPIRED = 61, 62, 63, 66


def controller(**settings: str) -> ControllerState:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    return ControllerState(
        config=node_config(**{**SECRET, **named}),
        random=Random(1),
        cluster_id=CLUSTER,
        supported_features=dict(SUPPORTED),
    )


def caller(name: str = "alice", now_ms: int = NOW_MS) -> TokenCaller:
    return TokenCaller("User", name, now_ms)


def run(state: ControllerState, decision: Any) -> Any:
    """Apply a decision and return its reply."""
    result = whole(decision)
    state.image = apply(state.image, result.records)[0]
    return result.reply


def create(state: ControllerState, *renewers: str, by: str = "alice", **more: Any) -> Any:
    shape = CreateDelegationTokenRequest.CreatableRenewers
    request = CreateDelegationTokenRequest(
        renewers=[shape(principal_type="User", principal_name=name) for name in renewers],
        **{"max_lifetime_ms": -1, **more},
    )
    return run(state, decide_create_token(state, request, caller=caller(by)))


def renew(state: ControllerState, hmac: bytes, period_ms: int = -1, **who: Any) -> Any:
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return run(state, decide_renew_token(state, request, caller=caller(**who)))


def expire(state: ControllerState, hmac: bytes, period_ms: int = -1, **who: Any) -> Any:
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return run(state, decide_expire_token(state, request, caller=caller(**who)))


def test_token_is_an_hmac_of_its_id_and_metadata_have_no_secret() -> None:
    state = controller()
    issued = create(state, "bob", owner_principal_type="User", owner_principal_name="carol")
    assert issued.hmac == token_hmac(b"secret", issued.token_id)
    assert issued.max_timestamp_ms == NOW_MS + 7 * DAY_MS
    assert issued.expiry_timestamp_ms == NOW_MS + DAY_MS
    record = state.image.tokens[issued.token_id]
    assert (record.owner, record.requester, record.renewers) == (
        "User:carol",
        "User:alice",
        ["User:bob"],
    )
    assert "secret" not in repr(record)


def test_tokens_are_part_of_snapshots() -> None:
    state = controller()
    create(state, "bob")
    image, _ = apply(MetadataImage(), list(image_records(state.image)))
    assert dict(image.tokens) == dict(state.image.tokens)


def test_times_of_a_token_are_bounded_by_the_settings() -> None:
    settings = {
        "delegation.token.max.lifetime.ms": "5000",
        "delegation.token.expiry.time.ms": "1000",
    }
    state = controller(**settings)
    issued = create(state, max_lifetime_ms=10_000)
    assert issued.max_timestamp_ms == NOW_MS + 5000
    assert issued.expiry_timestamp_ms == NOW_MS + 1000
    short = create(state, max_lifetime_ms=700)
    assert short.max_timestamp_ms == short.expiry_timestamp_ms == NOW_MS + 700
    assert renew(state, issued.hmac, 9000).expiry_timestamp_ms == NOW_MS + 1000
    late = NOW_MS + 900
    assert renew(state, issued.hmac, now_ms=late).expiry_timestamp_ms == late + 1000
    for now_ms in range(NOW_MS + 1800, NOW_MS + 5000, 900):
        answer = renew(state, issued.hmac, now_ms=now_ms)
        assert answer.expiry_timestamp_ms == min(now_ms + 1000, NOW_MS + 5000)


def test_token_belongs_to_its_owner_and_renewers() -> None:
    """Invariant 105: not even its requester may prolong the token of another owner."""
    state = controller()
    issued = create(state, "bob", owner_principal_type="User", owner_principal_name="carol")
    for name, code in (
        ("carol", 0),
        ("bob", 0),
        ("alice", OWNER_MISMATCH),
        ("eve", OWNER_MISMATCH),
    ):
        assert renew(state, issued.hmac, name=name).error_code == code
    assert expire(state, issued.hmac, name="eve").error_code == OWNER_MISMATCH
    assert expire(state, issued.hmac, name="bob").error_code == 0
    assert issued.token_id not in state.image.tokens


def test_expired_token_cannot_be_renewed_but_removed() -> None:
    state = controller()
    issued = create(state, max_lifetime_ms=1000)
    assert renew(state, issued.hmac, now_ms=NOW_MS + 1000).error_code == 0
    assert renew(state, issued.hmac, now_ms=NOW_MS + 1001).error_code == EXPIRED
    assert expire(state, issued.hmac, 5000, now_ms=NOW_MS + 1001).error_code == EXPIRED
    assert expire(state, issued.hmac, 200).expiry_timestamp_ms == NOW_MS + 200
    assert renew(state, issued.hmac, now_ms=NOW_MS + 201).error_code == EXPIRED
    assert expire(state, issued.hmac, now_ms=NOW_MS + 5000).error_code == 0
    assert renew(state, issued.hmac).error_code == NOT_FOUND
    assert expire(state, b"unknown").error_code == NOT_FOUND


def test_tokens_need_a_secret_and_a_release_that_has_them() -> None:
    disabled = controller(**{"delegation.token.secret.key": ""})
    assert create(disabled).error_code == AUTH_DISABLED
    assert renew(disabled, b"x").error_code == AUTH_DISABLED
    assert expire(disabled, b"x").error_code == AUTH_DISABLED
    state = controller()
    old = [FeatureLevelRecord(name="metadata.version", feature_level=13)]
    state = attrs.evolve(state, image=apply(state.image, old)[0])
    assert create(state).error_code == 35
    assert not state.image.tokens


def test_expired_tokens_are_removed_in_slices() -> None:
    state = controller()
    for number in range(REMOVED_MAX + 50):
        create(state, max_lifetime_ms=1000 if number else 10_000)
    later = NOW_MS + 1001
    assert run(state, decide_remove_expired(state, NOW_MS)) is False
    assert len(state.image.tokens) == REMOVED_MAX + 50
    assert run(state, decide_remove_expired(state, later)) is True
    assert run(state, decide_remove_expired(state, later)) is False
    (rest,) = state.image.tokens.values()
    assert rest.max_timestamp == NOW_MS + 10_000
