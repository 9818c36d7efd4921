"""Requests that wait without a task: their answers, and the connection meanwhile."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kwire.net.limits import Limits
from kwire.testing.wire import TrioWireClient
from tests.support.net.node import BULK_BYTES, Echo, Node, frames_of, running, settle

pytestmark = pytest.mark.usefixtures("each_way_to_answer")
NARROW = Limits(socket_send_buffer_bytes=4096)


@asynccontextmanager
async def parking(limits: Limits | None = None) -> AsyncIterator[Node]:
    """Run a node whose sessions park requests that begin with ``park.``."""
    async with running(limits) as node:
        await node.keep_deadlines()
        node.listen()
        yield node


@asynccontextmanager
async def poll(node: Node, *frames: bytes) -> AsyncIterator[tuple[TrioWireClient, Echo]]:
    """Send frames over a new connection, the first of which waits; yield its session, too."""
    async with await node.connect() as client:
        await client.send_bytes(frames_of(*frames))
        await settle()
        yield client, node.sessions[-1]


def memory_of(node: Node) -> tuple[int, int]:
    memory = node.service._memory
    return memory.used, memory.answering


@pytest.mark.usefixtures("each_way_to_wait")
async def test_answer_leaves_when_the_wait_ends() -> None:
    """invariant 95: the memory of the request counts until then."""
    async with parking() as node, poll(node, b"park.") as (client, session):
        assert memory_of(node) == (5, 1)
        assert session.answered == 0
        session.parked[0].set()
        assert await client.read_frame() == b"park."
        await settle()
        assert memory_of(node) == (0, 0)


@pytest.mark.usefixtures("each_way_to_wait")
async def test_wait_ends_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async with parking() as node:
        began = trio.current_time()
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"park."))
            with trio.fail_after(100):
                assert await client.read_frame() == b"park."
            assert trio.current_time() - began == pytest.approx(60, abs=1)


async def test_wait_ends_with_the_task_that_keeps_deadlines() -> None:
    """A node that stops answers, and parks nothing that nobody would end."""
    async with running() as node, trio.open_nursery() as nursery:
        node.nursery = nursery
        await node.keep_deadlines()
        node.listen()
        async with poll(node, b"park.") as (client, session):
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                assert await client.read_frame() == b"park."
                await client.send_bytes(frames_of(b"park."))
                await settle()
                session.parked[1].set()
                assert await client.read_frame() == b"park."


@pytest.mark.usefixtures("each_way_to_wait")
@pytest.mark.parametrize("arrives_later", [True, False])
async def test_requests_behind_it_are_answered_after_it(arrives_later: bool) -> None:
    async with parking() as node:
        frames = [b"park."] if arrives_later else [b"park.", b"a", b"park.b", b"c"]
        async with poll(node, *frames) as (client, session):
            if arrives_later:
                await client.send_bytes(frames_of(b"a", b"park.b"))
                await settle()
                await client.send_bytes(frames_of(b"c"))
            await settle()
            assert session.answered == 0
            session.parked[0].set()
            with trio.fail_after(20):
                assert [await client.read_frame() for _ in range(2)] == [b"park.", b"a"]
            await settle()
            assert session.answered == 2
            session.parked[1].set()
            assert [await client.read_frame() for _ in range(2)] == [b"b", b"c"]


async def test_bytes_that_arrive_as_the_wait_ends_are_read() -> None:
    """The connection's events are reported once only."""
    async with parking() as node, poll(node, b"park.") as (client, session):
        session.parked[0].set()
        await client.send_bytes(frames_of(b"next"))
        assert [await client.read_frame() for _ in range(2)] == [b"park.", b"next"]


async def test_half_a_frame_behind_it_is_kept() -> None:
    async with parking() as node:
        rest = frames_of(bytes(100_000))
        async with await node.connect() as client:
            await client.send_bytes(frames_of(b"park.") + rest[:60_000])
            await settle()
            await client.send_bytes(rest[60_000:])
            await settle()
            node.sessions[0].parked[0].set()
            assert await client.read_frame() == b"park."
            assert await client.read_frame() == bytes(100_000)
            await settle()
            assert memory_of(node) == (0, 0)


@pytest.mark.parametrize("word", [b"wait.", b"park.", b"park.wait."])
async def test_rest_of_the_work_may_wait_too(word: bytes) -> None:
    async with parking() as node, poll(node, b"park." + word + b"x") as (client, session):
        session.parked[0].set()
        await settle()
        if b"wait" in word:
            for wait in session.parked[1:]:
                wait.set()
            await session.waiting.wait()
            session.go.set()
        else:
            session.parked[1].set()
        if word == b"park.":
            assert await client.read_frame() == b"x"
        else:
            assert await client.read_frame() == b"wait.x"
        await settle()
        assert memory_of(node) == (0, 0)


async def test_slow_reader_gets_the_whole_answer() -> None:
    async with parking(NARROW) as node, await node.connect_narrow() as client:
        await settle()
        session = node.sessions[-1]
        for number in range(40):
            await client.send_bytes(frames_of(b"park.bulk."))
            await settle()
            session.parked[number].set()
            await settle()
            if memory_of(node)[0]:
                break
        else:
            pytest.fail("the socket took everything")
        for _ in range(number + 1):
            assert len(await client.read_frame()) == BULK_BYTES
        await settle()
        assert memory_of(node) == (0, 0)


async def test_throttle_time_of_the_answer_holds(autojump_clock: trio.testing.MockClock) -> None:
    async with parking() as node, poll(node, b"park.mute.") as (client, session):
        session.parked[0].set()
        await client.send_bytes(frames_of(b"next"))
        began = trio.current_time()
        assert [await client.read_frame() for _ in range(2)] == [b"mute.", b"next"]
        assert trio.current_time() - began == pytest.approx(5, abs=1)


@pytest.mark.parametrize("word", [b"crash", b"stop."])
async def test_failure_after_the_wait_ends_the_connection(word: bytes) -> None:
    async with parking() as node, poll(node, b"park." + word) as (client, session):
        session.parked[0].set()
        assert await client.is_closed()
        await node.wait_connection_count(0)
        assert memory_of(node) == (0, 0)


async def test_hang_up_ends_the_wait() -> None:
    async with parking() as node:
        async with poll(node, b"park.") as (_, session):
            pass
        await node.wait_connection_count(0)
        assert session.dropped == 1
        assert memory_of(node) == (0, 0)


async def test_requests_sent_before_a_hang_up_are_answered() -> None:
    async with parking() as node:
        with socket.create_connection(("127.0.0.1", node.port)) as sock:
            sock.sendall(frames_of(b"park."))
            await settle()
            sock.sendall(frames_of(b"next"))
            sock.shutdown(socket.SHUT_WR)
            await settle()
            session = node.sessions[0]
            assert session.dropped == 0
            session.parked[0].set()
            await node.wait_connection_count(0)
            assert sock.recv(100) == frames_of(b"park.", b"next")
            assert memory_of(node) == (0, 0)


async def test_closed_connection_drops_its_request() -> None:
    async with parking() as node, poll(node, b"park.") as (client, session):
        (connection,) = node.service.connections
        connection.close("a test")
        assert await client.is_closed()
        await settle()
        assert session.dropped == 1
        assert memory_of(node) == (0, 0)
