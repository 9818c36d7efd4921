"""Listeners and connections under abuse, over real loopback sockets."""

import errno
import logging
import socket
from contextlib import ExitStack
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
import trio
import trio.testing

from kwire.net import acceptor
from kwire.net.acceptor import ACCEPT_BATCH, COLLECTED, OpenConnection
from kwire.net.address_rates import CREATED
from kwire.net.limits import Limits, last_descriptor
from kwire.net.readiness import HANG_UPS
from kwire.net.server import CLOSE_BATCH
from kwire.net.turns import TURN_FRAMES
from kwire.testing.wire import Closed, TrioWireClient
from tests.support.handlers.throttles import throttles
from tests.support.net.node import Echo, Node, echo, frames_of, running, settle

pytestmark = pytest.mark.usefixtures("each_way_to_wait", "each_way_to_answer")


async def test_answers_come_in_order_however_requests_arrive() -> None:
    """invariant 103."""
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            bodies = [b"%d" % number for number in range(3 * TURN_FRAMES + 1)]
            wire = frames_of(*bodies)
            for start in range(0, len(wire), 7):
                await client.send_bytes(wire[start : start + 7])
            assert [await client.read_frame() for _ in bodies] == bodies


async def test_large_frames_are_received_and_sent() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            body = bytes(range(256)) * 20_000
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_bytes, frames_of(body, b"small", body))
                assert await client.read_frame() == body
                assert await client.read_frame() == b"small"
                assert await client.read_frame() == body


async def test_requests_without_answer_keep_the_order() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"none.", b"one", b"none.", b"two"))
            assert [await client.read_frame() for _ in range(2)] == [b"one", b"two"]


ABUSE = [
    pytest.param(pack(">i", -1), id="negative size"),
    pytest.param(pack(">i", 0), id="empty frame"),
    pytest.param(pack(">i", 2147483647), id="huge size"),
    pytest.param(pack(">i", (100 << 20) + 1), id="one over the limit"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
    pytest.param(bytes.fromhex("16030100c8010000c40303"), id="TLS hello"),
    pytest.param(b"\xff" * 64, id="garbage"),
    pytest.param(frames_of(b"stop."), id="refused by the session"),
]


@pytest.mark.parametrize("data", ABUSE)
async def test_bad_connection_is_closed_alone_with_one_log_line(
    data: bytes, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """invariants 94 and 100."""
    caplog.set_level(logging.INFO, "kwire")
    async with running() as node:
        node.listen()
        async with await node.connect() as bad, await node.connect() as good:
            host, port = bad.stream.socket.getsockname()
            await bad.send_bytes(data)
            with trio.fail_after(10):
                assert await bad.is_closed()
            assert await echo(good, b"fine") == b"fine"
        lines = [record for record in caplog.records if record.name.startswith("kwire")]
        assert len(lines) == 1, lines
        assert f"connection closed listener=A peer={host}:{port} " in lines[0].message


async def test_bug_closes_the_connection_and_logs_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """invariant 100."""
    async with running() as node:
        node.listen()
        async with await node.connect() as bad, await node.connect() as good:
            await bad.send_bytes(frames_of(b"crash"))
            assert await bad.is_closed()
            assert await echo(good, b"fine") == b"fine"
        (line,) = (record for record in caplog.records if record.exc_info)
        assert line.exc_info is not None
        assert line.exc_info[0] is ZeroDivisionError


async def test_half_a_frame_delays_no_other_client() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as good:
            half = await node.connect()
            await half.send_bytes(frames_of(b"whole") + pack(">i", 1000) + b"half")
            assert await half.read_frame() == b"whole"
            assert await echo(good, b"fine") == b"fine"
            await half.stream.aclose()
            await node.wait_connection_count(1)


async def test_announced_sizes_cost_no_memory() -> None:
    """invariant 94: memory follows the bytes that arrived."""
    async with running() as node:
        node.listen()
        clients = [await node.connect() for _ in range(20)]
        for client in clients:
            await client.send_bytes(pack(">i", 90 << 20) + b"x" * 100)
        await settle()
        assert sum(c.framer.buffer_bytes for c in node.service.connections) <= 20 * 4096
        for client in clients:
            await client.stream.aclose()
        await node.wait_connection_count(0)
        assert node.service._memory.used == 0


@pytest.mark.notices_hang_up
async def test_hang_up_cancels_a_waiting_answer() -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        await client.send_bytes(frames_of(b"wait."))
        await node.sessions[0].waiting.wait()
        await client.stream.aclose()
        await node.wait_connection_count(0)
        assert node.sessions[0].cancelled


@pytest.mark.parametrize("early", [True, False])
async def test_hang_up_does_not_cancel_a_change(early: bool) -> None:
    """A producer with acks=0 may close right after sending; its records are appended."""
    async with running() as node:
        node.listen()
        client = await node.connect()
        if early:
            await client.send_bytes(frames_of(b"wait.", b"write"))
            await client.stream.aclose()
            await node.sessions[0].waiting.wait()
        else:
            await client.send_bytes(frames_of(b"write"))
            await node.sessions[0].waiting.wait()
            await client.stream.aclose()
        await settle()
        node.sessions[0].go.set()
        await node.wait_connection_count(0)
        assert node.sessions[0].answered == 1 + early


@pytest.mark.notices_hang_up
async def test_reset_cancels_a_waiting_answer() -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        await client.send_bytes(frames_of(b"wait."))
        await node.sessions[0].waiting.wait()
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        client.stream.socket.close()
        await node.wait_connection_count(0)
        assert node.sessions[0].cancelled


async def test_requests_sent_before_a_hang_up_are_answered() -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        await client.send_bytes(frames_of(b"wait.", b"none.", b"one", b"two"))
        await node.sessions[0].waiting.wait()
        await client.stream.send_eof()
        await settle()
        assert not node.sessions[0].cancelled
        node.sessions[0].go.set()
        assert [await client.read_frame() for _ in range(3)] == [b"wait.", b"one", b"two"]
        assert await client.is_closed()
        await node.wait_connection_count(0)
        await client.stream.aclose()


async def test_idle_connections_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with running(Limits(connections_max_idle_ms=60_000)) as node:
        node.listen()
        idle, busy, waiting = [await node.connect() for _ in range(3)]
        await waiting.send_bytes(frames_of(b"wait."))
        for _ in range(4):
            await trio.sleep(20)
            assert await echo(busy, b"here") == b"here"
        assert await idle.is_closed()
        await node.wait_connection_count(2)
        for client in (idle, busy, waiting):
            await client.stream.aclose()


async def test_idle_node_is_not_woken(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        await trio.sleep(599)
        before = trio.lowlevel.current_statistics()
        assert before.seconds_to_next_deadline > 0.5
        await trio.sleep(2)
        assert await client.is_closed()
        await client.stream.aclose()
        await node.wait_connection_count(0)


async def test_connections_over_an_address_limit_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 102."""
    async with running(Limits(max_connections_per_ip=2)) as node:
        node.listen()
        first, second, third = [await node.connect() for _ in range(3)]
        with trio.fail_after(10):
            assert await third.is_closed()
        assert await echo(first, b"fine") == b"fine"
        await first.stream.aclose()
        await node.wait_connection_count(1)
        fourth = await node.connect()
        assert await echo(fourth, b"fine") == b"fine"
        for client in (second, third, fourth):
            await client.stream.aclose()


async def test_ipv4_client_of_a_socket_for_every_address_has_its_ipv4_address() -> None:
    """A limit on 127.0.0.1, and a line that names it, are about such a client too."""
    hosts = []

    def session(listener: str, host: str, port: int) -> Echo:
        hosts.append(host)
        return Echo()

    limits = Limits(max_connections_per_ip_overrides={"127.0.0.1": 1})
    async with running(limits) as node:
        port = node.service.bind("A", "", 0).port
        node.service.accept("A", session)
        first, second = await node.connect(port), await node.connect(port)
        assert await echo(first, b"in") == b"in"
        assert await second.is_closed()
        for client in (first, second):
            await client.stream.aclose()
    assert hosts == ["127.0.0.1"]


async def test_connections_over_the_nodes_limit_wait() -> None:
    """invariant 102."""
    async with running(Limits(max_connections=2)) as node:
        node.listen()
        first, second, third = [await node.connect() for _ in range(3)]
        await third.send_bytes(frames_of(b"patience"))
        await settle()
        assert len(node.service.connections) == 2
        await first.stream.aclose()
        assert await third.read_frame() == b"patience"
        for client in (second, third):
            await client.stream.aclose()


async def test_limits_change_at_run_time(autojump_clock: trio.testing.MockClock) -> None:
    async with running(Limits(max_connections=1, max_connection_creation_rate=1000)) as node:
        node.listen()
        first, second = [await node.connect() for _ in range(2)]
        await second.send_bytes(frames_of(b"patience"))
        await settle()
        assert len(node.service.connections) == 1
        node.service.relimit(Limits(max_connections=2, max_connection_creation_rate=0))
        await settle()
        assert len(node.service.connections) == 1, "room for one, and the rate forbids it"
        node.service.relimit(Limits(max_connections=2))
        assert await second.read_frame() == b"patience"
        for client in (first, second):
            await client.stream.aclose()


async def test_listener_has_its_own_limit() -> None:
    async with running() as node:
        narrow = node.listen("A", limits=Limits(max_connections=1))
        wide = node.listen("B")
        clients = [await node.connect(port) for port in (narrow, wide, wide)]
        await node.wait_connection_count(3)
        late = await node.connect(narrow)
        await settle()
        assert len(node.service.connections) == 3
        for client in [*clients, late]:
            await client.stream.aclose()


async def test_brokers_get_in_when_clients_fill_the_node(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """invariant 102: a flood of clients keeps no node of the cluster out."""
    async with running(Limits(max_connections=2)) as node:
        clients_port = node.listen("CLIENTS")
        nodes_port = node.listen("NODES", protected=True)
        first, second = await node.connect(clients_port), await node.connect(clients_port)
        assert await echo(first, b"busy") == b"busy"
        assert await echo(second, b"fine") == b"fine", "a client makes no room for another"
        assert await echo(first, b"busy") == b"busy"
        peer = await node.connect(nodes_port)
        with trio.fail_after(10):
            assert await echo(peer, b"fine") == b"fine"
        assert await second.is_closed(), "the connection that was idle longest"
        for client in (first, second, peer):
            await client.stream.aclose()


async def test_broker_takes_the_place_of_a_client_that_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 102: no client is disconnected if another leaves while one is being chosen."""
    async with running(Limits(max_connections=2)) as node:
        clients_port = node.listen("CLIENTS")
        nodes_port = node.listen("NODES", protected=True)
        first, second = await node.connect(clients_port), await node.connect(clients_port)
        await node.wait_connection_count(2)
        find_oldest = node.service.acceptor.find_oldest

        async def find_slowly() -> OpenConnection | None:
            await second.stream.aclose()
            await node.wait_connection_count(1)
            return await find_oldest()

        node.service.acceptor.find_oldest = find_slowly
        peer = await node.connect(nodes_port)
        assert await echo(peer, b"fine") == b"fine"
        assert await echo(first, b"fine") == b"fine"
        for client in (first, peer):
            await client.stream.aclose()


async def test_connection_creation_rate_is_limited(autojump_clock: trio.testing.MockClock) -> None:
    """invariant 102."""
    async with running(Limits(max_connection_creation_rate=2)) as node:
        node.listen()
        started = trio.current_time()
        clients = [await TrioWireClient.connect("127.0.0.1", node.port) for _ in range(6)]
        for client in clients:
            assert await echo(client, b"in") == b"in"
        assert trio.current_time() - started >= 1.9
        for client in clients:
            await client.stream.aclose()


async def test_brokers_get_in_while_clients_use_up_the_rate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 102: only its own rate limits the listener of the nodes, as in Kafka."""
    async with running(Limits(max_connection_creation_rate=1)) as node:
        clients_port = node.listen("CLIENTS")
        nodes_port = node.listen("NODES", protected=True)
        started = trio.current_time()
        clients = [await node.connect(clients_port) for _ in range(5)]
        peer = await node.connect(nodes_port)
        assert await echo(peer, b"fine") == b"fine"
        assert trio.current_time() - started < 1
        second_peer = await node.connect(nodes_port)
        assert await echo(second_peer, b"later") == b"later"
        assert trio.current_time() - started >= 0.9
        assert await echo(clients[-1], b"last") == b"last"
        assert 4 <= trio.current_time() - started < 5, "nodes use up nothing of the clients' rate"
        for client in (*clients, peer, second_peer):
            await client.stream.aclose()


async def test_address_over_its_rate_is_disconnected_a_little_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 102: its other connections go on, and the rate allows new ones after a while."""
    async with running(Limits(quota_window_num=2)) as node:
        node.listen()
        node.service.limit_addresses({(("ip", "127.0.0.1"),): {"connection_creation_rate": 2.0}})
        started = trio.current_time()
        clients = [await node.connect() for _ in range(4)]
        for client in clients[:2]:
            assert await echo(client, b"in") == b"in"
        await clients[2].send_bytes(frames_of(b"never answered"))
        assert await clients[2].is_closed()
        assert await clients[3].is_closed()
        assert 0.4 <= trio.current_time() - started <= 1.0
        assert throttles(node.service.metrics, CREATED) == (2, pytest.approx(1.0, abs=0.2))
        assert await echo(clients[0], b"fine") == b"fine"
        await trio.sleep(2)
        late = await node.connect()
        assert await echo(late, b"in again") == b"in again"
        node.service.limit_addresses({})
        many = [await node.connect() for _ in range(10)]
        for client in many:
            assert await echo(client, b"free") == b"free"
        for client in (*clients, late, *many):
            await client.stream.aclose()


async def test_connections_over_a_rate_are_closed_with_the_node(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "THROTTLED_MAX", 1)
    async with running(Limits(quota_window_num=2)) as node:
        node.listen()
        node.service.limit_addresses({(("ip", None),): {"connection_creation_rate": 1.0}})
        first, second, third = [await node.connect() for _ in range(3)]
        assert await echo(first, b"in") == b"in"
        started = trio.current_time()
        assert await third.is_closed()
        assert trio.current_time() == started, "a flood is not kept open"
    assert await second.is_closed()
    for client in (first, second, third):
        await client.stream.aclose()


async def test_exhausted_descriptors_pause_the_accept_loop(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        tries = []

        class Exhausted:
            def __init__(self, sock: socket.socket) -> None:
                self.sock = sock

            def accept(self) -> Any:
                tries.append(trio.current_time())
                if len(tries) < 5:
                    raise OSError(errno.EMFILE, "too many open files")
                return self.sock.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(self.sock, name)

        listener = node.service.listeners["A"]
        listener.sock = Exhausted(listener.sock)  # type: ignore[assignment]
        late = await TrioWireClient.connect("127.0.0.1", node.port)
        assert await echo(client, b"fine") == b"fine"
        assert await echo(late, b"late") == b"late"
        assert tries[4] - tries[0] >= 1.0, "the accept loop pauses, it does not spin"
        assert caplog.text.count("accept paused") == 1
        for each in (client, late):
            await each.stream.aclose()


async def test_last_descriptors_are_reserved_for_files(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 90: an open connection may need a file; new connections wait for descriptors."""
    async with running() as node:
        node.listen()
        node.service.acceptor.last_descriptor = 1
        first = await node.connect()
        late = await TrioWireClient.connect("127.0.0.1", node.port)
        await trio.sleep(60)
        assert len(node.service.connections) == 1
        assert await echo(first, b"served") == b"served"
        node.service.acceptor.last_descriptor = 10_000
        await first.stream.aclose()
        assert await echo(late, b"late") == b"late"
        await late.stream.aclose()


@pytest.mark.parametrize(("descriptors", "expected"), [(256, 192), (1024, 896), (1 << 20, 917_504)])
def test_share_of_descriptors_for_connections(descriptors: int, expected: int) -> None:
    assert last_descriptor(descriptors) == expected


async def test_memory_for_requests_is_bounded() -> None:
    """invariant 95, as far as it needs no authentication (KIP-72)."""
    async with running(Limits(queued_max_request_bytes=100_000)) as node:
        node.listen()
        first, second = await node.connect(), await node.connect()
        await first.send_bytes(frames_of(b"wait." + bytes(60_000)))
        await node.sessions[0].waiting.wait()
        await second.send_bytes(frames_of(bytes(60_000)))
        await settle()
        assert node.sessions[1].answered == 0, "not even read while the first is in flight"
        node.sessions[0].go.set()
        assert len(await first.read_frame()) == 60_005
        assert len(await second.read_frame()) == 60_000
        assert node.service._memory.used == 0
        for client in (first, second):
            await client.stream.aclose()


async def test_large_requests_get_through_little_memory_one_by_one() -> None:
    """invariant 95: incomplete frames that do not fit together are completed one by one."""
    async with running(Limits(queued_max_request_bytes=200_000)) as node:
        node.listen()
        body = bytes(300_000)

        async def send_large() -> None:
            async with await node.connect() as client, trio.open_nursery() as nursery:
                nursery.start_soon(client.send_bytes, frames_of(body))
                assert await client.read_frame() == body

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send_large)
        await node.wait_connection_count(0)
        assert node.service._memory.used == 0


async def test_buffers_of_large_requests_are_reused() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"none." + bytes(300_000), b"done"))
            assert await client.read_frame() == b"done"
            free_count = node.service._buffers.free_count
            assert free_count == 1, "no view of an answered request is left"


async def changes_by_turn(node: Node, count: int) -> list[int]:
    """Return the change in open connections for each turn of the loop, until ``count`` are open."""
    counts = [len(node.service.connections)]
    while counts[-1] != count:
        await trio.lowlevel.checkpoint()
        counts.append(len(node.service.connections))
    return [abs(after - before) for before, after in pairwise(counts)]


async def test_objects_of_connections_are_collected_after_a_few_of_them() -> None:
    """A collection of those of many connections would make the other clients wait."""
    collections: list[int] = []
    async with running() as node:
        node.service.acceptor.collect = lambda: collections.append(len(node.service.connections))
        node.listen()
        with ExitStack() as stack:
            for _ in range(3 * COLLECTED):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
                await settle()
    assert collections == [COLLECTED, 2 * COLLECTED, 3 * COLLECTED]


async def test_many_connections_are_accepted_and_closed_a_few_per_turn() -> None:
    """invariant 102: others are served while a flood of connections comes, and while it ends."""
    async with running(Limits(socket_listen_backlog_size=300)) as node:
        node.listen()
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            changes = await changes_by_turn(node, 200)
            assert max(changes) <= 2 * ACCEPT_BATCH, "tasks run in any order"
            await settle()
        assert max(await changes_by_turn(node, 0)) <= 2 * (CLOSE_BATCH + HANG_UPS)


async def test_open_connections_are_served_after_stop_accepting() -> None:
    async with running() as node:
        node.listen()
        client = await node.connect()
        node.service.stop_accepting()
        await settle()
        assert await echo(client, b"fine") == b"fine"
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", node.port)
        await client.stream.aclose()


async def test_stop_closes_connections_and_frees_the_port() -> None:
    async with running() as node:
        port = node.listen()
        client = await node.connect()
        await client.send_bytes(frames_of(b"wait."))
        await node.sessions[0].waiting.wait()
    with pytest.raises(Closed):
        await client.read_frame()
    await client.stream.aclose()
    async with running() as node:
        node.service.bind("A", "127.0.0.1", port)


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1"])
async def test_listener_binds_every_form_of_host(host: str) -> None:
    async with running() as node:
        address = node.service.bind("A", host, 0)
        assert address.port > 0
        node.service.accept("A", node.session)
        async with await node.connect(address.port) as client:
            assert await echo(client, b"fine") == b"fine"
