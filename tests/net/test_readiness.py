"""Many connections at once hold up the others for a bounded time."""

import gc
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final
from weakref import ref

import pytest
import trio

from kwire.net import readiness
from kwire.net.acceptor import ACCEPT_BATCH
from kwire.net.listener import Answer
from kwire.net.readiness import DIRECT, HANG_UPS, WAKES
from tests.support.net.node import Echo, Node, echo, frames_of, running, settle

pytestmark = pytest.mark.skipif(not readiness._HAS_EPOLL, reason="needs epoll")
MANY: Final = 400
TURNS: Final = 8
"""Turns that one request may take: its bytes arrive, its task is woken, its answer is read."""


@asynccontextmanager
async def crowd(node: Node) -> AsyncIterator[list[socket.socket]]:
    """Open many connections that do not wait with trio, beside idle ones that do."""
    with ExitStack() as stack:
        sockets = []
        before = len(node.service.connections)
        for number in range(DIRECT + MANY):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            sockets.append(sock)
            if number % ACCEPT_BATCH == 0:
                await node.wait_connection_count(before + number + 1)
        await node.wait_connection_count(before + DIRECT + MANY)
        yield sockets[DIRECT:]


def answers(node: Node) -> int:
    return sum(session.answered for session in node.sessions if isinstance(session, Echo))


async def test_client_is_served_between_thousands_of_requests() -> None:
    """invariant 10."""
    async with running() as node:
        node.listen()
        async with await node.connect() as first, crowd(node) as others:
            for _ in range(5):
                before = answers(node)
                for sock in others:
                    sock.sendall(frames_of(b"one of many"))
                assert await echo(first, b"short") == b"short"
                assert answers(node) - before < TURNS * WAKES
                for sock in others:
                    await trio.lowlevel.wait_readable(sock)
                    sock.recv(100)


async def test_client_is_served_between_thousands_of_hang_ups() -> None:
    """invariant 10: a request does not wait for all hang-ups that came before it."""
    async with running() as node:
        node.listen()
        async with crowd(node) as others, await node.connect() as last:
            count = len(node.service.connections)
            for sock in others:
                sock.close()
            assert await echo(last, b"short") == b"short"
            assert len(node.service.connections) > count - TURNS * HANG_UPS
            await node.wait_connection_count(DIRECT + 1)


async def test_requests_are_answered_in_the_order_of_their_arrival(
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
    assert max(displaced) < TURNS * WAKES, displaced


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
                await node.wait_connection_count(DIRECT)


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
