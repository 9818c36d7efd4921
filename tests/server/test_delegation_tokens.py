"""Delegation tokens on a whole node: who may use them, and as whom their bearers are served."""

import logging
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from kwire.codec.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.codec.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.metadata_records import DelegationTokenRecord
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.node.delegation_tokens import TokenCredentials
from kwire.node.server import Server
from kwire.security.exchange import Unready
from kwire.security.scram import BY_NAME, ScramMechanism, salt_password
from kwire.testing.wire import TrioWireClient
from tests.support.security.scram_client import Client
from tests.support.server.nodes import running

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="secret" user_bob="secret";'
    ),
    "connection.failed.authentication.delay.ms": "0",
    "delegation.token.secret.key": "secret of the cluster",
    "delegation.token.expiry.check.interval.ms": "100",
}
NOT_ALLOWED, INVALID_PRINCIPAL_TYPE = 64, 67


async def connect(server: Server) -> TrioWireClient:
    return await TrioWireClient.connect(*server.core.net.address("LOGIN"))


async def log_in(client: TrioWireClient, user: str) -> None:
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    token = f"\0{user}\0secret".encode()
    assert (await client.call(SaslAuthenticateRequest(auth_bytes=token), 2)).error_code == 0


async def log_in_with_token(
    client: TrioWireClient, issued: Any, name: str = "SCRAM-SHA-256", extension: str = "true"
) -> Any:
    peer = Client(
        BY_NAME[name].hash_name, issued.token_id, b64encode(issued.hmac).decode(),
        extensions=f",tokenauth={extension}",
    )  # fmt: skip
    await client.call(SaslHandshakeRequest(mechanism=name), 1)
    answer = await client.call(SaslAuthenticateRequest(auth_bytes=peer.first()), 2)
    answer = await client.call(SaslAuthenticateRequest(auth_bytes=peer.final(answer.auth_bytes)), 2)
    assert answer.error_code or peer.accepts(answer.auth_bytes)
    return answer


async def create(
    client: TrioWireClient, lifetime_ms: int = 60_000, owner: tuple[str, str] | None = None
) -> Any:
    kind, name = owner or (None, None)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[],
        max_lifetime_ms=lifetime_ms,
    )
    return await client.call(request, 3)


@pytest.mark.slow
async def test_bearer_of_a_token_is_its_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 105: a token makes no further tokens, and its password is in no log."""
    caplog.set_level(logging.DEBUG)
    async with running(tmp_path / "data", **SETTINGS) as server:
        async with await connect(server) as alice:
            await log_in(alice, "alice")
            issued = await create(alice)
            assert issued.error_code == 0
        for name in BY_NAME:
            for _ in range(2):  # The second one uses the credential that the first one issued.
                async with await connect(server) as client:
                    answer = await log_in_with_token(client, issued, name)
                    assert answer.error_code == 0
                    assert 50_000 < answer.session_lifetime_ms <= 60_000
                    assert (await client.call(MetadataRequest(topics=None), 12)).brokers
                    assert (await create(client)).error_code == NOT_ALLOWED
                    request = DescribeDelegationTokenRequest(owners=None)
                    assert (await client.call(request, 3)).error_code == NOT_ALLOWED
        async with await connect(server) as client:
            answer = await log_in_with_token(client, issued, extension="false")
            assert answer.error_code == 58
        async with await TrioWireClient.connect(*server.address) as anonymous:
            assert (await create(anonymous)).error_code == NOT_ALLOWED
    for secret in (b64encode(issued.hmac).decode(), issued.hmac.hex(), "secret of the cluster"):
        assert secret not in caplog.text


async def test_owner_of_a_token_is_a_user(tmp_path: Path) -> None:
    """The bearer of a token is served as a user, whatever the type of its owner."""
    async with running(tmp_path / "data", **SETTINGS) as server, await connect(server) as alice:
        await log_in(alice, "alice")
        for kind in ("Group", "user", ""):
            assert (await create(alice, owner=(kind, "bob"))).error_code == INVALID_PRINCIPAL_TYPE
        assert (await create(alice, owner=("User", "bob"))).error_code == 0


@pytest.mark.slow
async def test_expired_token_logs_nobody_in_and_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path / "data", **SETTINGS) as server:
        async with await connect(server) as alice:
            await log_in(alice, "alice")
            issued = await create(alice, 300)
            with trio.fail_after(20):
                publisher = server.core.publisher
                await publisher.wait_for(lambda image: issued.token_id not in image.tokens)
        async with await connect(server) as client:
            assert (await log_in_with_token(client, issued)).error_code == 58


async def test_credential_of_a_token_is_made_once_and_ends_with_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 105: an expired token logs nobody in before its removal either."""
    salted: list[str] = []

    def salt(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        salted.append(password)
        return salt_password(mechanism, password, salt, iterations)

    monkeypatch.setattr("kwire.node.delegation_tokens.salt_password", salt)
    record = DelegationTokenRecord(
        owner="User:alice",
        requester="User:bob",
        renewers=[],
        issue_timestamp=0,
        max_timestamp=10_000,
        expiration_timestamp=5_000,
        token_id="id",
    )
    clock = [1_000]
    tokens = TokenCredentials(
        mechanism=BY_NAME["SCRAM-SHA-256"],
        secret=b"secret",
        records=lambda: {"id": record},
        now_ms=lambda: clock[0],
        random_bytes=Random(1).randbytes,
    )
    assert tokens.find("other") is None
    with pytest.raises(Unready) as caught:
        tokens.find("id")
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(caught.value.prepare)
    assert len(salted) == 1
    credential = tokens.find("id")
    assert credential is not None
    assert (credential.owner, credential.expires_ms) == ("alice", 5_000)
    clock[0] = 5_000
    assert tokens.find("id") == credential
    clock[0] = 5_001
    assert tokens.find("id") is None
