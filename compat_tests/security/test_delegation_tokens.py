"""Delegation tokens (KIP-48): Kafka's tool makes them, clients log in with them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.security.brokers import JAAS, PLAIN_MODULE, SCRAM_MODULE, Guarded, run_guarded
from compat_tests.security.wire import connect_as, log_in_with_token
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.codec.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kwire.codec.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.renew_delegation_token import RenewDelegationTokenRequest
from kwire.security.scram import BY_NAME
from kwire.testing.wire import WireClient

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": JAAS,
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
}
SECRET = {"delegation.token.secret.key": "the secret of the cluster"}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
DISABLED, NOT_FOUND, OWNER_MISMATCH, NOT_ALLOWED, NOT_AUTHORIZED, EXPIRED = 61, 62, 63, 64, 65, 66
INVALID_PRINCIPAL_TYPE = 67
ALICE, BOB = ("alice", "alice-secret"), ("bob", "bob,=secret")


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("delegation")
    with run_guarded(broker_kind, directory, {**SETTINGS, **SECRET, **AUTHORIZER}) as running:
        yield running


@pytest.fixture(scope="module")
def no_secret(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with run_guarded(broker_kind, tmp_path_factory.mktemp("none"), SETTINGS) as running:
        yield running


def as_user(broker: Guarded, user: tuple[str, str]) -> WireClient:
    """Return a connection of a user who has logged in with a password."""
    return connect_as(broker.login, *user)


def make(client: WireClient, **more: Any) -> Any:
    """Create a token; ``more`` are fields of the request."""
    fields: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    }
    return client.call(CreateDelegationTokenRequest(**{**fields, **more}), 3)


def make_known(client: WireClient, **more: Any) -> Any:
    """Create a token and wait until Kafka's broker and controller know it, too."""
    issued = make(client, **more)
    assert issued.error_code == 0
    name = issued.principal_name
    eventually(lambda: issued.token_id in ids(describe(client, name)), "the token is known")
    time.sleep(0.3)
    return issued


def owner(name: str, kind: str = "User") -> dict[str, str]:
    return {"owner_principal_type": kind, "owner_principal_name": name}


def renewer(name: str, kind: str = "User") -> CreateDelegationTokenRequest.CreatableRenewers:
    shape = CreateDelegationTokenRequest.CreatableRenewers
    return shape(principal_type=kind, principal_name=name)


def describe(client: WireClient, *owners: str, everything: bool = False) -> Any:
    shape = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = [shape(principal_type="User", principal_name=name) for name in owners]
    request = DescribeDelegationTokenRequest(owners=None if everything else named)
    return client.call(request, 3)


def ids(answer: Any) -> set[str]:
    assert answer.error_code == 0
    return {token.token_id for token in answer.tokens}


def renew(client: WireClient, hmac: bytes, period_ms: int = -1) -> Any:
    return client.call(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), 2)


def expire(client: WireClient, hmac: bytes, period_ms: int = -1) -> Any:
    return client.call(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms), 2)


def test_token_is_made_renewed_shown_and_removed_by_the_tool(
    broker: Guarded, jvm: Jvm, topic: str, tmp_path: Path
) -> None:
    create(broker.address, topic)
    allow(broker, "User:alice", 2, topic, 4)
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        f'{PLAIN_MODULE} required username="{ALICE[0]}" password="{ALICE[1]}";\n'
    )
    shared = ("--bootstrap-server", broker.login, "--command-config", str(config))
    period = ("--max-life-time-period", "86400000")
    issued = jvm.tool(TOOL, *shared, "--create", *period, "--renewer-principal", "User:bob").ok()
    row = re.search(
        r"^(\S{22}) +(\S{88}) +User:alice +User:alice +\[User:bob\]", issued, re.MULTILINE
    )
    assert row is not None, issued
    token_id, hmac = row.groups()
    of_alice = ("--describe", "--owner-principal", "User:alice")
    eventually(lambda: token_id in jvm.tool(TOOL, *shared, *of_alice).ok(), "the token is known")
    jvm.tool(TOOL, *shared, "--renew", "--renew-time-period", "-1", "--hmac", hmac).ok()
    consume = tmp_path / "token.properties"
    consume.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
        f'{SCRAM_MODULE} required username="{token_id}" password="{hmac}" tokenauth="true";\n'
    )
    server = ("--bootstrap-server", broker.login, "--topic", topic)
    writer = "org.apache.kafka.tools.ConsoleProducer"
    jvm.tool(writer, *server, "--command-config", str(consume), stdin="by token\n").ok()
    by_token = ("--bootstrap-server", broker.login, "--command-config", str(consume))
    failed = jvm.tool(TOOL, *by_token, "--create", *period)
    assert failed.code != 0
    assert "Delegation Token requests are not allowed" in failed.out + failed.err
    jvm.tool(TOOL, *shared, "--expire", "--expiry-time-period", "-1", "--hmac", hmac).ok()
    eventually(lambda: token_id not in jvm.tool(TOOL, *shared, *of_alice).ok(), "it is gone")


@pytest.mark.parametrize("mechanism", sorted(BY_NAME))
def test_bearer_of_a_token_is_its_owner_until_it_expires(broker: Guarded, mechanism: str) -> None:
    with as_user(broker, ALICE) as alice, connect(broker.login) as client:
        issued = make_known(alice, max_lifetime_ms=60_000)
        assert (issued.principal_name, issued.token_requester_principal_name) == ("alice", "alice")
        assert issued.max_timestamp_ms - issued.issue_timestamp_ms == 60_000
        assert issued.expiry_timestamp_ms == issued.max_timestamp_ms
        answer = log_in_with_token(client, issued.token_id, bytes(issued.hmac), mechanism)
        assert answer.error_code == 0
        assert 50_000 < answer.session_lifetime_ms <= 60_000
        assert client.call(MetadataRequest(topics=None), 12).brokers
        assert make(client).error_code == NOT_ALLOWED
        assert renew(client, bytes(issued.hmac)).error_code == NOT_ALLOWED
        assert expire(client, bytes(issued.hmac)).error_code == NOT_ALLOWED
        assert describe(client, "alice").error_code == NOT_ALLOWED


def test_wrong_password_of_a_token_and_unknown_token_are_refused(broker: Guarded) -> None:
    with as_user(broker, ALICE) as alice:
        issued = make_known(alice)
    for token_id, hmac in (
        (issued.token_id, b"x" * 64),
        ("x" * 22, bytes(issued.hmac)),
        ("alice", b"x"),
    ):
        with connect(broker.login) as client:
            assert log_in_with_token(client, token_id, hmac).error_code == 58
            assert client.is_closed()


def test_errors_of_creations(broker: Guarded) -> None:
    with as_user(broker, ALICE) as alice:
        refused = make(alice, **owner("carol"))
        assert refused.error_code == NOT_AUTHORIZED
        assert (refused.principal_name, refused.expiry_timestamp_ms) == ("carol", -1)
        assert (refused.token_id, refused.hmac) == ("", b"")
        invalid = make(alice, renewers=[renewer("x", "Group")])
        assert (invalid.error_code, invalid.issue_timestamp_ms) == (INVALID_PRINCIPAL_TYPE, -1)
        allow(broker, "User:alice", 7, "User:carol", 13)
        issued = make(alice, **owner("carol"))
        assert issued.error_code == 0
        assert (issued.principal_name, issued.token_requester_principal_name) == ("carol", "alice")
    with connect(broker.address) as anonymous:
        assert make(anonymous).error_code == NOT_ALLOWED
        assert describe(anonymous, everything=True).error_code == NOT_ALLOWED
        assert renew(anonymous, b"x").error_code == NOT_ALLOWED
        assert renew(anonymous, b"x").expiry_timestamp_ms == -1


def test_only_owners_and_renewers_change_a_token(broker: Guarded) -> None:
    with as_user(broker, ALICE) as alice, as_user(broker, BOB) as bob:
        own, shared = make_known(alice), make_known(alice, renewers=[renewer("bob")])
        assert renew(bob, bytes(own.hmac)).error_code == OWNER_MISMATCH
        assert expire(bob, bytes(own.hmac)).error_code == OWNER_MISMATCH
        assert renew(bob, bytes(shared.hmac), 1000).error_code == 0
        assert renew(alice, b"unknown").error_code == NOT_FOUND
        assert expire(alice, b"unknown").error_code == NOT_FOUND
        shorter = expire(alice, bytes(own.hmac), 100)
        assert shorter.error_code == 0

        def is_shorter() -> bool:
            expiries = {t.token_id: t.expiry_timestamp for t in describe(alice, "alice").tokens}
            return bool(expiries.get(own.token_id) == shorter.expiry_timestamp_ms)

        eventually(is_shorter, "the broker knows the earlier expiry")
        time.sleep(0.2)  # Until the token has expired.
        assert renew(alice, bytes(own.hmac)).error_code == EXPIRED
        assert expire(alice, bytes(own.hmac), 1000).error_code == EXPIRED
        assert expire(alice, bytes(own.hmac)).error_code == 0
        eventually(
            lambda: renew(alice, bytes(own.hmac)).error_code == NOT_FOUND, "the token is gone"
        )


def test_renewal_ends_at_the_latest_time(broker: Guarded) -> None:
    with as_user(broker, ALICE) as alice:
        issued = make_known(alice, max_lifetime_ms=100_000)
        assert (
            renew(alice, bytes(issued.hmac), 10**9).expiry_timestamp_ms == issued.max_timestamp_ms
        )
        earlier = renew(alice, bytes(issued.hmac), 50_000).expiry_timestamp_ms
        assert earlier < issued.max_timestamp_ms

        def describe_it() -> Any:
            (token,) = (t for t in describe(alice, "alice").tokens if t.token_id == issued.token_id)
            return token if token.expiry_timestamp == earlier else None

        token = eventually(describe_it, "the expiry is described")
        assert token.max_timestamp == issued.max_timestamp_ms
        assert bytes(token.hmac) == bytes(issued.hmac)


def test_tokens_of_others_are_shown_by_permission_only(broker: Guarded) -> None:
    with as_user(broker, ALICE) as alice, as_user(broker, BOB) as bob:
        hidden, shared = make_known(alice), make_known(alice, renewers=[renewer("bob")])
        assert hidden.token_id not in ids(describe(bob, everything=True))
        assert shared.token_id in ids(describe(bob, everything=True))
        assert ids(describe(bob, "nobody")) == set()
        assert ids(describe(bob)) == set()
        allow(broker, "User:bob", 6, hidden.token_id, 8)
        assert hidden.token_id in ids(describe(bob, "alice"))
        third = make_known(alice)
        assert third.token_id not in ids(describe(bob, "alice"))
        allow(broker, "User:bob", 7, "User:alice", 14)
        assert third.token_id in ids(describe(bob, everything=True))


def test_broker_without_a_secret_has_no_tokens(no_secret: Guarded) -> None:
    with as_user(no_secret, ALICE) as alice:
        refused = make(alice)
        assert (refused.error_code, refused.principal_name) == (DISABLED, "alice")
        assert refused.issue_timestamp_ms == 0
        assert describe(alice, everything=True).error_code == DISABLED
        assert renew(alice, b"x").error_code == DISABLED
        assert expire(alice, b"x").error_code == DISABLED


@pytest.mark.single
def test_tokens_survive_a_restart(broker_kind: str, tmp_path: Path) -> None:
    with run_guarded(broker_kind, tmp_path / "again", {**SETTINGS, **SECRET}) as guarded:
        with as_user(guarded, ALICE) as alice:
            issued = make_known(alice)
        guarded.broker.restart()
        with connect(guarded.login) as client:
            answer = log_in_with_token(client, issued.token_id, bytes(issued.hmac))
            assert answer.error_code == 0


def allow(broker: Guarded, principal: str, kind: int, name: str, operation: int) -> None:
    """Let a user perform one operation on one resource; wait until that holds."""
    creation = CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=3,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=3,
    )
    with connect(broker.address) as client:
        answer = client.call(CreateAclsRequest(creations=[creation]), 3)
        assert [result.error_code for result in answer.results] == [0]
        described = DescribeAclsRequest(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=3,
            principal_filter=principal,
            host_filter="*",
            operation=operation,
            permission_type=3,
        )
        eventually(lambda: client.call(described, 3).resources, "the ACL is in force")
