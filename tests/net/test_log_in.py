"""Connections whose clients log in: what passes before, and what ends them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack

import attrs
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from kwire.clock import SystemClock
from kwire.codec.frame import request_frame
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.metrics import Metrics
from kwire.net import pending_logins
from kwire.net.limits import Limits
from kwire.net.log_in import LoginCounts, LoginRequests, LoginRules
from kwire.net.pending_logins import FRAME_BYTES_MAX, LOG_IN_S
from kwire.net.server import NetServer
from kwire.security.conversation import Login, Mechanism
from kwire.security.plain import PlainServer, digest
from kwire.testing.wire import TrioWireClient
from tests.support.net.node import Echo, frames_of

PASSWORDS = {"alice": digest("secret")}
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"
LIMITS = Limits(socket_request_max_bytes=10_000)


@attrs.define
class Guarded:
    """A running listener, its metrics, and the users whose requests it served."""

    service: NetServer
    metrics: Metrics
    users: list[str]
    port: int = 0

    async def connect(self) -> TrioWireClient:
        return await TrioWireClient.connect("127.0.0.1", self.port)

    def counts(self) -> list[float]:
        counts = LoginCounts.of(self.metrics, "A")
        cells = (counts.succeeded, counts.failed, counts.renewed, counts.not_renewed)
        return [*(cell.value for cell in cells), counts.expired.value]


@asynccontextmanager
async def serve(lifetime_ms: int = 0, max_frame_bytes: int = 1000) -> AsyncIterator[Guarded]:
    limits = attrs.evolve(LIMITS, socket_request_max_bytes=max(10_000, 2 * max_frame_bytes))
    node = Guarded(NetServer(limits), Metrics(), [])

    def begin() -> PlainServer:
        return PlainServer(PASSWORDS)

    rules = LoginRules(
        mechanisms={"PLAIN": Mechanism(begin=begin, lifetime_ms=lifetime_ms)},
        max_frame_bytes=max_frame_bytes,
        failure_delay_s=0.5,
        clock=SystemClock(),
        counts=LoginCounts.of(node.metrics, "A"),
    )

    def as_user(login: Login) -> Echo:
        node.users.append(login.user)
        return Echo()

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        node.port = node.service.bind("A", "127.0.0.1", 0).port
        node.service.accept("A", lambda *_: LoginRequests(rules, Echo(), as_user))
        yield node
        nursery.cancel_scope.cancel()


def handshake() -> bytes:
    return request_frame(17, 1, 1, "c", SaslHandshakeRequest(mechanism="PLAIN"))


def authenticate(token: bytes) -> bytes:
    return request_frame(36, 2, 2, "c", SaslAuthenticateRequest(auth_bytes=token))


async def log_in(client: TrioWireClient, token: bytes = RIGHT) -> SaslAuthenticateResponse:
    await client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return await client.call(SaslAuthenticateRequest(auth_bytes=token), 2)


async def echo(client: TrioWireClient, body: bytes) -> bytes:
    await client.send_bytes(frames_of(body))
    return await client.read_frame()


async def test_requests_after_the_log_in_are_those_of_the_user() -> None:
    async with serve() as node, await node.connect() as client:
        assert (await log_in(client)).error_code == 0
        assert node.users == ["alice"]
        assert await echo(client, b"hello") == b"hello"
        assert node.counts() == [1, 0, 0, 0, 0]


async def test_requests_sent_with_the_log_in_wait_for_its_end() -> None:
    async with serve() as node, await node.connect() as client:
        await client.send_bytes(handshake() + authenticate(RIGHT) + frames_of(b"hello"))
        for _ in range(2):
            await client.read_frame()
        assert await client.read_frame() == b"hello"


async def test_failed_log_in_is_answered_late_and_ends_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 105: passwords cannot be tried quickly."""
    async with serve() as node, await node.connect() as client:
        started = trio.current_time()
        assert (await log_in(client, WRONG)).error_code == 58
        assert trio.current_time() >= started + 0.5
        assert await client.is_closed()
        assert node.users == []
        assert node.counts() == [0, 1, 0, 0, 0]


async def test_requests_behind_a_failed_log_in_are_dropped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve() as node, await node.connect() as client:
        await client.send_bytes(handshake() + authenticate(WRONG) + frames_of(b"hello"))
        await client.read_frame()
        await client.read_frame()
        assert await client.is_closed()
        assert node.users == []


async def test_other_request_before_the_log_in_ends_the_connection(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as node, await node.connect() as client:
        with caplog.at_level("INFO"):
            await client.send_bytes(frames_of(b"\0\x03\0\0\0\0\0\x01\xff\xff"))
            assert await client.is_closed()
        assert "a request before authentication: API key 3" in caplog.text
        assert node.counts() == [0, 1, 0, 0, 0]


async def test_frames_are_small_until_the_log_in() -> None:
    """Invariant 95."""
    async with serve() as node:
        async with await node.connect() as client:
            await client.send_bytes(pack(">i", 1001))
            with trio.fail_after(10):
                assert await client.is_closed()
        async with await node.connect() as client:
            await log_in(client)
            large = bytes(9000)
            assert await echo(client, large) == large
            await client.send_bytes(pack(">i", 10_001))
            assert await client.is_closed()


async def test_session_ends_unless_it_is_renewed(autojump_clock: trio.testing.MockClock) -> None:
    async with serve(lifetime_ms=5000) as node, await node.connect() as client:
        assert (await log_in(client)).session_lifetime_ms == 5000
        await trio.sleep(4)
        assert (await log_in(client)).session_lifetime_ms == 5000
        await trio.sleep(4)
        assert await echo(client, b"hello") == b"hello"
        await trio.sleep(2)
        await client.send_bytes(frames_of(b"hello"))
        assert await client.is_closed()
        assert node.users == ["alice"]
        assert node.counts() == [1, 0, 1, 0, 1]


async def test_session_may_be_renewed_late_but_not_more_than_once_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serve(lifetime_ms=5000) as node, await node.connect() as client:
        await log_in(client)
        await trio.sleep(10)
        assert (await log_in(client)).error_code == 0
        await trio.sleep(0.5)
        again = handshake()
        await client.send_bytes(again)
        assert await client.read_frame() == again[4:]
        assert node.counts() == [1, 0, 1, 0, 0]


async def test_what_lasts_as_long_as_the_connection_ends_with_it_after_a_second_log_in(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share session is such a thing."""
    closed: list[Echo] = []
    monkeypatch.setattr(Echo, "on_closed", lambda echo: closed.append(echo))
    async with serve(lifetime_ms=5000) as node:
        async with await node.connect() as client:
            await log_in(client)
            await trio.sleep(4)
            await log_in(client)
        await wait_all_tasks_blocked()
        assert node.users == ["alice"]
        assert len(closed) == 1


async def test_failed_renewal_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with serve(lifetime_ms=5000) as node, await node.connect() as client:
        await log_in(client)
        assert (await log_in(client, WRONG)).error_code == 58
        assert await client.is_closed()
        assert node.counts() == [1, 0, 0, 1, 0]


async def test_frames_before_the_log_in_are_small_whatever_the_settings_say() -> None:
    """Invariant 95."""
    async with serve(max_frame_bytes=1 << 20) as node, await node.connect() as client:
        await client.send_bytes(pack(">i", FRAME_BYTES_MAX + 1))
        with trio.fail_after(10):
            assert await client.is_closed()


@pytest.mark.parametrize("sent", [b"", handshake()[:9], handshake()], ids=["silent", "cut", "half"])
async def test_client_that_does_not_log_in_is_disconnected(
    sent: bytes, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 102."""
    async with serve() as node, await node.connect() as client, await node.connect() as good:
        await log_in(good)
        await client.send_bytes(sent)
        if len(sent) == len(handshake()):
            await client.read_frame()
        started = trio.current_time()
        with caplog.at_level("INFO"):
            assert await client.is_closed()
        assert trio.current_time() - started == pytest.approx(LOG_IN_S)
        assert "no login within 30 seconds" in caplog.text
        assert await echo(good, b"hello") == b"hello"


async def test_silent_connections_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 102: the client that has sent no request for longest makes room."""
    monkeypatch.setattr(pending_logins, "GUESTS_MAX", 3)
    async with serve() as node, trio.open_nursery() as nursery:
        user = await node.connect()
        await log_in(user)
        waiting = [await node.connect() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        await waiting[0].call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        newest = await node.connect()
        with trio.fail_after(10):
            assert await waiting[1].is_closed()
            token = SaslAuthenticateRequest(auth_bytes=RIGHT)
            assert (await waiting[0].call(token, 2)).error_code == 0
            assert (await log_in(newest)).error_code == 0
            assert await echo(user, b"hello") == b"hello"
        for client in (user, *waiting, newest):
            nursery.start_soon(client.stream.aclose)
    assert len(node.service.listeners["A"].guests) == 0
