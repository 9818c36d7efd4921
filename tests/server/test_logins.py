"""Logins on a whole node: its settings, its users in the metadata, and what a user may do then."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.net.log_in import LoginRequests
from kwire.node.server import Server
from kwire.security.scram import BY_NAME, salt_password
from kwire.security.scram_arguments import parse_credential
from kwire.storage_format.directories import format_node
from kwire.testing.wire import TrioWireClient
from tests.support.security.scram_client import Client
from tests.support.server.nodes import config, running

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "0",
}
CLUSTER, OTHER = "MkU3OEVBNTcwNTJENDM2Qg", "OtherClusterOtherCluOA"
ALICE = "SCRAM-SHA-512=[name=alice,password=secret]"


@asynccontextmanager
async def serve(
    directory: Path, cluster_id: str = CLUSTER, *, is_new: bool = True
) -> AsyncIterator[Server]:
    """Run a node whose cluster begins with the user alice."""
    users = (parse_credential(ALICE, b"salt"),)
    if is_new:
        list(format_node(config(directory, **SETTINGS), cluster_id, False, extra=users))
    async with running(directory, **SETTINGS) as server:
        yield server


async def log_in(
    client: TrioWireClient, user: str, password: str, name: str = "SCRAM-SHA-512"
) -> Any:
    """Return the answer to the final message, or the first answer with an error."""
    peer = Client(BY_NAME[name].hash_name, user, password)
    await client.call(SaslHandshakeRequest(mechanism=name), 1)
    answer = await client.call(SaslAuthenticateRequest(auth_bytes=peer.first()), 2)
    if answer.error_code:
        return answer
    answer = await client.call(SaslAuthenticateRequest(auth_bytes=peer.final(answer.auth_bytes)), 2)
    assert answer.error_code or peer.accepts(answer.auth_bytes)
    return answer


async def salt_of(server: Server, user: str) -> str:
    """Return the salt with which a user's login begins."""
    peer = Client("sha512", user, "secret")
    async with await TrioWireClient.connect(*server.core.net.address("LOGIN")) as client:
        await client.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        answer = await client.call(SaslAuthenticateRequest(auth_bytes=peer.first()), 2)
    return str(bytes(answer.auth_bytes).decode().split(",")[1])


@pytest.mark.slow
async def test_unknown_user_has_the_same_salt_on_every_node_and_after_a_restart(
    tmp_path: Path,
) -> None:
    """Invariant 105: a salt that differs would show that the user does not exist."""
    salts = []
    starts = (("a", CLUSTER), ("a", CLUSTER), ("b", CLUSTER), ("c", OTHER))
    for count, (name, cluster_id) in enumerate(starts):
        async with serve(tmp_path / name, cluster_id, is_new=count != 1) as server:
            salts.append(await salt_of(server, "eve"))
            assert await salt_of(server, "eva") != salts[-1]
    assert salts[0] == salts[1] == salts[2] != salts[3]


async def alter(server: Server, **items: Any) -> None:
    async with await TrioWireClient.connect(*server.address) as client:
        answer = await client.call(AlterUserScramCredentialsRequest(**items), 0)
    assert [result.error_code for result in answer.results] == [0]


@pytest.mark.slow
async def test_users_in_the_metadata_log_in(tmp_path: Path) -> None:
    """A user is known as soon as its credential is; one who is removed stays connected."""
    async with serve(tmp_path / "data") as server:
        address = server.core.net.address("LOGIN")
        async with await TrioWireClient.connect(*address) as alice:
            assert (await log_in(alice, "alice", "secret")).error_code == 0
            assert (await alice.call(MetadataRequest(topics=None), 12)).brokers
            for user, password in (("alice", "wrong"), ("bob", "secret")):
                async with await TrioWireClient.connect(*address) as client:
                    answer = await log_in(client, user, password)
                    assert answer.error_code == 58
                    assert "invalid credentials with SASL mechanism" in answer.error_message
                    assert await client.is_closed()
            mechanism = BY_NAME["SCRAM-SHA-256"]
            upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name="bob",
                mechanism=mechanism.number,
                iterations=4096,
                salt=b"x",
                salted_password=salt_password(mechanism, "bob's", b"x", 4096),
            )
            await alter(server, upsertions=[upsertion])
            async with await TrioWireClient.connect(*address) as client:
                assert (await log_in(client, "bob", "bob's", "SCRAM-SHA-256")).error_code == 0
            deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                name="alice", mechanism=BY_NAME["SCRAM-SHA-512"].number
            )
            await alter(server, deletions=[deletion])
            assert (await alice.call(MetadataRequest(topics=None), 12)).brokers
            async with await TrioWireClient.connect(*address) as client:
                assert (await log_in(client, "alice", "secret")).error_code == 58


async def test_failed_logins_leave_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """A full collection comes once the memory has doubled, so wrong passwords would fill it."""
    async with serve(tmp_path) as server:
        address = server.core.net.address("LOGIN")
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                async with await TrioWireClient.connect(*address) as client:
                    assert (await log_in(client, "alice", "wrong")).error_code
            await trio.sleep(0.5)
            remaining = [each for each in gc.get_objects() if isinstance(each, LoginRequests)]
            assert len(remaining) < 5  # The search for idle connections may hold one.
        finally:
            gc.enable()
