"""Connections to other nodes over TLS: both sides verified, or no connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
import trustme

from kwire.clock import SystemClock
from kwire.configs.tls import TlsConfig
from kwire.metrics import Metrics
from kwire.net.connection_pool import ConnectionPool, Network, OutOfReach
from kwire.net.tls.client_tls import ClientTls, open_client_tls
from kwire.net.tls.server_tls import open_tls
from tests.support.net.peer import Other, heartbeat
from tests.support.net.tls import HOST, certificate, pem, settings, trusted_pem


def client_tls(
    directory: Path, leaf: trustme.LeafCert | None = None, *, trust: str = "a", **more: str
) -> ClientTls:
    texts = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted_pem(trust),
        **{f"ssl.{name.replace('_', '.')}": text for name, text in more.items()},
    }
    if leaf is not None:
        store = directory / "client.pem"
        store.write_text(pem(leaf))
        texts |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    return open_client_tls("L", TlsConfig(texts), trio.current_time)


@asynccontextmanager
async def network(
    directory: Path, tls: ClientTls | None, *, is_encrypted: bool = True, **more: str
) -> AsyncIterator[tuple[ConnectionPool, Other]]:
    """Run another node whose listener has these TLS settings, and a pool of connections to it."""
    other = Other()
    node = Network(SystemClock(), Random(1))
    pool = node.pool("node-1", 30.0, tls=tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(other.service.run)
        server = None
        if is_encrypted:
            leaf = certificate(more.pop("host", HOST))
            server = open_tls("L", settings(directory, leaf, **more), SystemClock(), Metrics())
        other.service.bind("L", HOST, 0, tls=server)
        other.service.accept("L", lambda *_: other)
        await nursery.start(node.run)
        yield pool, other
        nursery.cancel_scope.cancel()


async def test_nodes_that_trust_each_other_talk(tmp_path: Path) -> None:
    tls = client_tls(tmp_path, certificate("node", common_name="node"))
    async with network(tmp_path, tls, client_auth="required") as (pool, other):
        answers: list[int] = []

        async def call(generation: int) -> None:
            answer = await pool.call(HOST, other.port, heartbeat("g", generation))
            answers.append(answer.error_code)

        async with trio.open_nursery() as nursery:
            for generation in range(300):
                nursery.start_soon(call, generation)
        assert sorted(answers) == list(range(300))
        assert other.connection_count == 1


async def test_large_requests_pass_while_others_are_made(tmp_path: Path) -> None:
    """A request larger than one piece, behind which others wait."""
    async with network(tmp_path, client_tls(tmp_path)) as (pool, other):
        large = heartbeat("g" * 30_000)
        large.member_id = "m" * 32_000
        large.group_instance_id = "i" * 32_000
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(partial(pool.call, HOST, other.port, large))
                    nursery.start_soon(partial(pool.call, HOST, other.port, heartbeat("g")))


@pytest.mark.parametrize("case", ["untrusted", "wrong host", "no certificate", "not encrypted"])
async def test_node_that_cannot_be_verified_gets_no_request(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = client_tls(tmp_path, trust="other" if case == "untrusted" else "a")
    more = {
        "wrong host": {"host": "elsewhere.example"},
        "no certificate": {"client_auth": "required"},
    }.get(case, {})
    encrypted = case != "not encrypted"
    async with network(tmp_path, tls, is_encrypted=encrypted, **more) as (pool, other):
        with pytest.raises(OutOfReach):
            await pool.call(HOST, other.port, heartbeat("g"))
        assert other.connection_count == 0
    if case in ("untrusted", "wrong host"):
        assert "TLS with another node failed host=127.0.0.1" in caplog.text


async def test_host_name_is_not_checked_where_that_is_off(tmp_path: Path) -> None:
    tls = client_tls(tmp_path, endpoint_identification_algorithm="")
    async with network(tmp_path, tls, host="elsewhere.example") as (pool, other):
        assert (await pool.call(HOST, other.port, heartbeat("g", 3))).error_code == 3


async def test_plain_connection_to_an_encrypted_listener_fails(tmp_path: Path) -> None:
    async with network(tmp_path, None) as (pool, other):
        with pytest.raises(OutOfReach):
            await pool.call(HOST, other.port, heartbeat("g"))


async def test_idle_connection_ends_with_the_other_node(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It shakes hands: a silent connection would be closed as a half-open handshake."""
    tls = client_tls(tmp_path)
    async with network(tmp_path, tls) as (pool, other):
        idle = await pool.network.connect_idle(
            HOST, other.port, is_numeric=True, tls=tls, server_name=HOST
        )
        async with idle:
            with trio.move_on_after(60) as waiting:
                await idle.wait_end()
            assert waiting.cancelled_caught
            (connection,) = other.service.connections
            connection.close("")
            with trio.fail_after(5):
                await idle.wait_end()


async def test_idle_connection_to_another_host_is_an_error(tmp_path: Path) -> None:
    tls = client_tls(tmp_path)
    async with network(tmp_path, tls) as (pool, other):
        with pytest.raises(OSError, match=r"(?i)certificate"):
            await pool.network.connect_idle(
                HOST, other.port, is_numeric=True, tls=tls, server_name="elsewhere.example"
            )
