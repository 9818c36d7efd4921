"""The login of a node at another one, and its renewal while requests go on."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.metrics import Metrics
from kwire.net.client import ConnectionLost, NodeClient
from kwire.net.log_in import LoginCounts, LoginRequests, LoginRules
from kwire.net.node_login import NodeLogin, PlainProof, ScramProof, SendRequest
from kwire.net.server import NetServer
from kwire.security.conversation import Login, Mechanism
from kwire.security.plain import PlainServer, client_token, digest
from kwire.security.scram import (
    BY_NAME,
    Decoys,
    ScramMechanism,
    ScramServer,
    make_credential,
    salt_password,
)
from tests.support.net.peer import Other, heartbeat

PASSWORDS = {"node": digest("secret")}


def scram(mechanism: ScramMechanism) -> Mechanism:
    salted = salt_password(mechanism, "secret", b"salt", 4096)
    users = {"node": make_credential(mechanism, salted, b"salt", 4096)}
    return Mechanism(begin=lambda: ScramServer(mechanism, users.get, Decoys(b"key"), "nonce"))


@attrs.define
class Guarded:
    """Another node, whose clients must log in."""

    service: NetServer
    counts: LoginCounts
    port: int = 0
    users: list[str] = attrs.field(factory=list)
    """The users of its connections."""


@asynccontextmanager
async def serve(lifetime_ms: int = 0) -> AsyncIterator[Guarded]:
    node = Guarded(NetServer(), LoginCounts.of(Metrics(), "L"))
    plain = Mechanism(begin=lambda: PlainServer(PASSWORDS), lifetime_ms=lifetime_ms)
    rules = LoginRules(
        mechanisms={"PLAIN": plain, **{name: scram(each) for name, each in BY_NAME.items()}},
        max_frame_bytes=1000,
        failure_delay_s=0.0,
        clock=SystemClock(),
        counts=node.counts,
    )

    def as_user(login: Login) -> Other:
        node.users.append(login.user)
        return Other()

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        node.port = node.service.bind("L", "127.0.0.1", 0).port
        node.service.accept("L", lambda *_: LoginRequests(rules, Other(), as_user))
        yield node
        nursery.cancel_scope.cancel()


def login(password: str = "secret", mechanism: str = "PLAIN") -> NodeLogin:
    scram = BY_NAME.get(mechanism)
    if scram is None:
        return NodeLogin(PlainProof("node", password))
    return NodeLogin(ScramProof("node", password, scram, Random(1).randbytes))


@asynccontextmanager
async def connect(node: Guarded, own: NodeLogin) -> AsyncIterator[NodeClient]:
    client = NodeClient("127.0.0.1", node.port, "c", login=own)
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        yield client
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mechanism", ["PLAIN", *BY_NAME])
async def test_node_logs_in(mechanism: str) -> None:
    async with serve() as node:
        own = login(mechanism=mechanism)
        for _ in range(2):
            async with connect(node, own) as client:
                assert (await client.call(heartbeat("g"))).error_code == 7
        assert node.users == ["node"] * 2


@pytest.mark.parametrize("mechanism", ["PLAIN", *BY_NAME])
async def test_refused_log_in_is_warned_about_once(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as node:
        own = login("wrong", mechanism)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await NodeClient("127.0.0.1", node.port, "c", login=own).run()
        (record,) = caplog.records
        assert "user=node" in record.getMessage()
        assert "wrong" not in record.getMessage()
        assert node.users == []


async def test_mechanism_that_the_other_node_lacks_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = ScramMechanism("SCRAM-SHA-1", 9, "sha1")
    async with serve() as node:
        own = NodeLogin(ScramProof("node", "secret", other, Random(1).randbytes))
        with pytest.raises(ConnectionLost):
            await NodeClient("127.0.0.1", node.port, "c", login=own).run()
        assert "the other node does not offer SCRAM-SHA-1, only PLAIN" in caplog.text


async def test_session_is_renewed_while_requests_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve(lifetime_ms=5000) as node, connect(node, login()) as client:
        for _ in range(60):
            assert (await client.call(heartbeat("g"))).error_code == 7
            await trio.sleep(0.3)
        assert node.counts.renewed.value == 4
        assert node.users == ["node"]


@attrs.define
class SlowLogin(NodeLogin):
    """A login that pauses after the handshake when it is renewed."""

    renewing: trio.Event = attrs.field(factory=trio.Event, kw_only=True)
    go: trio.Event = attrs.field(factory=trio.Event, kw_only=True)
    is_first: bool = attrs.field(default=True, kw_only=True)

    async def log_in(self, call: SendRequest, address: str) -> float:
        await call(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        if not self.is_first:
            self.renewing.set()
            await self.go.wait()
        self.is_first = False
        token = client_token("node", "secret")
        response = await call(SaslAuthenticateRequest(auth_bytes=token))
        assert not response.error_code
        return response.session_lifetime_ms / 1000


async def test_requests_wait_for_a_log_in(autojump_clock: trio.testing.MockClock) -> None:
    """Between a handshake and its token, another request would end the connection."""
    slow = SlowLogin(PlainProof("node", "secret"))
    async with serve(lifetime_ms=5000) as node, connect(node, slow) as client:
        await slow.renewing.wait()
        calls = [client.begin(heartbeat("g", number)) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert not any(call.done.is_set() for call in calls)
        slow.go.set()
        for number, call in enumerate(calls):
            await call.done.wait()
            assert client.end(call).error_code == number


async def test_requests_that_wait_for_a_log_in_end_with_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow = SlowLogin(PlainProof("node", "secret"))
    async with serve(lifetime_ms=5000) as node, connect(node, slow) as client:
        await slow.renewing.wait()
        call = client.begin(heartbeat("g"))
    assert call.done.is_set()
    with pytest.raises(ConnectionLost):
        client.end(call)
