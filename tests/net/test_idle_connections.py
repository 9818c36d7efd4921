"""Connections that wait for nothing cost little, and end like all others."""

import gc
import socket
import tracemalloc
import warnings
from contextlib import ExitStack
from typing import Final

import pytest
import trio

from kwire.net import readiness
from tests.support.net.node import echo, frames_of, running, settle

pytestmark = pytest.mark.skipif(not readiness.HAS_EPOLL, reason="needs epoll")
MANY: Final = 200


async def test_idle_connection_keeps_little_memory() -> None:
    """A connection whose requests have all been answered at once keeps no task."""
    async with running() as node:
        node.listen()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.socket()) for _ in range(MANY)]
            async with await node.connect() as first:
                assert await echo(first, b"warm") == b"warm"
            await node.wait_connection_count(0)
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for count, client in enumerate(clients, 1):
                    client.connect(("127.0.0.1", node.port))
                    client.sendall(frames_of(b"one"))
                    await node.wait_connection_count(count)
                await settle()
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            answers = [client.recv(64) for client in clients]
            assert answers == [frames_of(b"one")] * MANY
            assert (after - before) / MANY < 3000


async def test_service_that_stops_closes_connections_that_never_waited() -> None:
    async with running() as node:
        node.listen()
        clients = [await node.connect() for _ in range(3)]
        assert await echo(clients[0], b"one") == b"one"
        sessions = node.sessions
    assert all(session.is_closed for session in sessions)
    for client in clients:
        assert await client.is_closed()
        await client.stream.aclose()


async def test_connection_that_was_closed_answers_nothing_more() -> None:
    async with running() as node:
        node.listen()
        async with await node.connect() as client:
            (connection,) = node.service.connections
            connection.close("asked to")
            await client.send_bytes(frames_of(b"late"))
            with trio.fail_after(10):
                assert await client.is_closed()
        assert not node.sessions[0].answered


async def test_request_that_has_to_wait_when_the_service_stops_has_begun() -> None:
    """Its task starts after the stop. It must await the work, or Python warns on stderr."""
    with warnings.catch_warnings(record=True) as caught, socket.socket() as client:
        warnings.simplefilter("always")
        async with running() as node:
            client.connect(("127.0.0.1", node.listen()))
            await node.wait_connection_count(1)
            await settle()
            (connection,) = node.service.connections
            client.sendall(frames_of(b"wait."))
            connection.readiness.on_arrival()
        gc.collect()
    assert node.sessions[0].waiting.is_set()
    assert not caught
