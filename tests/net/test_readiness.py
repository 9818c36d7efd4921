"""Many connections at once hold up the others for a bounded time."""

import gc
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Final
from weakref import ref

import pytest
import trio
import trio.testing

from kwire.net import readiness
from kwire.net.acceptor import ACCEPT_BATCH
from kwire.net.listener import Answer
from kwire.net.readiness import HANG_UPS, RESUMED_S, TURN_S, ReadinessPoller, WatchedSocket
from tests.support.net.node import Echo, Node, echo, frames_of, running, settle

pytestmark = pytest.mark.skipif(not readiness.HAS_EPOLL, reason="needs epoll")
MANY: Final = 400
TURNS: Final = 8
"""Turns that one request may take: its bytes arrive, its task is woken, its answer is read."""


@asynccontextmanager
async def crowd(node: Node) -> AsyncIterator[list[socket.socket]]:
    """Open many connections."""
    with ExitStack() as stack:
        sockets = []
        before = len(node.service.connections)
        for number in range(MANY):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            sockets.append(sock)
            if number % ACCEPT_BATCH == 0:
                await node.wait_connection_count(before + number + 1)
        await node.wait_connection_count(before + MANY)
        yield sockets


def answers(node: Node) -> int:
    return sum(session.answered for session in node.sessions if isinstance(session, Echo))


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """Serve few connections in a turn; return their number."""
    monkeypatch.setattr(readiness, "SERVED", 16)
    return 16


async def test_other_tasks_run_between_thousands_of_requests(few_at_once: int) -> None:
    """invariant 10."""
    async with running() as node:
        node.listen()
        async with crowd(node) as others:
            for sock in others:
                sock.sendall(frames_of(b"one of many"))
            counts = [answers(node)]
            while counts[-1] < MANY:
                await trio.lowlevel.checkpoint()
                counts.append(answers(node))
    most = max(after - before for before, after in pairwise(counts))
    assert most <= 2 * few_at_once, "two turns may come between two of this task"


async def test_client_is_served_between_thousands_of_hang_ups() -> None:
    """invariant 10: a request does not wait for all hang-ups that came before it."""
    async with running() as node:
        node.listen()
        async with crowd(node) as others, await node.connect() as last:
            count = len(node.service.connections)
            for sock in others:
                sock.close()
            for _ in range(2):  # The first comes in the same turn as the hang-ups.
                assert await echo(last, b"short") == b"short"
            assert len(node.service.connections) > count - 2 * TURNS * HANG_UPS
            await node.wait_connection_count(1)


async def test_requests_are_answered_in_the_order_of_their_arrival(
    few_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """invariant 10: no request is passed over for ever."""
    order: list[int] = []
    answer_now = Echo.answer_now

    def note_order(session: Echo, frame: memoryview) -> Answer:
        order.append(int(bytes(frame)))
        return answer_now(session, frame)

    monkeypatch.setattr(Echo, "answer_now", note_order)
    async with running() as node:
        node.listen()
        async with crowd(node) as others:
            for number, sock in enumerate(others):
                sock.sendall(frames_of(b"%d" % number))
            for sock in others:
                await trio.lowlevel.wait_readable(sock)
    displaced = [abs(place - number) for place, number in enumerate(order)]
    assert len(order) == MANY
    assert max(displaced) < TURNS * few_at_once, displaced


async def test_request_that_arrives_with_the_hang_up_is_served() -> None:
    async with running() as node:
        node.listen()
        async with crowd(node) as others:
            for session in node.sessions:
                session.go.set()
            for sock in others:
                sock.sendall(frames_of(b"none.", b"write"))
                sock.shutdown(socket.SHUT_WR)
            for sock in others:
                await trio.lowlevel.wait_readable(sock)
                assert sock.recv(100) == frames_of(b"write")
            with trio.fail_after(60):
                await node.wait_connection_count(0)


async def test_turn_that_has_taken_its_time_serves_no_further_connection() -> None:
    """invariant 10: requests that take long delay the other tasks one by one."""
    time_s, turn = 0.0, 0
    served: list[int] = []
    poller = ReadinessPoller(now=lambda: time_s)

    def serve(*, has_arrived: bool) -> bool:
        nonlocal time_s
        time_s += TURN_S * 0.6
        served.append(turn)
        return True

    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                ours, theirs = socket.socketpair()
                stack.enter_context(ours)
                stack.enter_context(theirs)
                watched = poller.watch(ours.fileno(), lambda: None)
                nursery.start_soon(watched.wait_data, serve)
                theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(poller.run)
            while len(served) < 20:
                turn += 1
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        poller.close()
    most = max(served.count(number) for number in served)
    assert most <= 4, "two in each turn, of which two may come between two of this task"


async def test_waits_that_end_together_share_their_turns_with_arrivals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """invariant 10: a thousand long polls do not delay another client; some are answered first."""
    monkeypatch.setattr("kwire.net.readiness.RESUMED_S", 0.0)
    count = 30
    async with running() as node, AsyncExitStack() as stack:
        await node.keep_deadlines()
        node.listen()
        clients = []
        for number in range(count):
            clients.append(await stack.enter_async_context(await node.connect()))
            await clients[-1].send_bytes(frames_of(b"park.echo" if number else b"park.first"))
        other = await stack.enter_async_context(await node.connect())
        await settle()
        for session in reversed(node.sessions[:count]):
            session.parked[0].set()
        await other.send_bytes(frames_of(b"ours"))
        assert await other.read_frame() == b"ours"
        assert sum(session.answered for session in node.sessions[:count]) < count / 2
        assert node.sessions[0].answered == 1
        for client in clients:
            assert await client.read_frame() in (b"echo", b"first")


async def test_resumed_requests_are_served_in_order_and_reach_those_behind_the_followers() -> None:
    """Invariant 10: followers whose waits end all the time leave a consumer its turn."""
    time_s = 0.0
    served: list[int] = []
    poller = ReadinessPoller(now=lambda: time_s)
    watched: list[WatchedSocket] = []
    consumer = 3

    def resume(number: int) -> None:
        poller.resume(watched[number], is_first=number != consumer)

    def serve(number: int, *, has_arrived: bool) -> bool:
        nonlocal time_s
        if not has_arrived:
            time_s += RESUMED_S * 2
            served.append(number)
            if number != consumer:
                resume(number)
        return True

    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                ours, theirs = socket.socketpair()
                stack.enter_context(ours)
                stack.enter_context(theirs)
                watched.append(poller.watch(ours.fileno(), lambda: None))
                nursery.start_soon(watched[-1].wait_data, partial(serve, number))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(poller.run)
            for number in range(4):
                resume(number)
            while len(served) < 10:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        poller.close()
    assert served[:2] == [0, consumer]
    assert [number for number in served if number != consumer][:6] == [0, 1, 2, 0, 1, 2]


async def test_closed_connection_leaves_no_garbage() -> None:
    """A node seldom looks for cycles among old objects: their memory would be lost for long."""
    async with running() as node:
        node.listen()
        async with await node.connect():  # The service's scan for idle connections remembers it.
            before = set(node.service.connections)
            async with await node.connect() as client:
                assert await echo(client, b"short") == b"short"
                (connection,) = map(ref, node.service.connections - before)
                node.sessions.clear()
                gc.collect()
                gc.disable()
            try:
                await node.wait_connection_count(1)
                await settle()
                assert connection() is None
            finally:
                gc.enable()
