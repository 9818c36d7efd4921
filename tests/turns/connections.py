"""A node with 20,000 connections, whose clients are idle."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from kwire.log.threads import DiskThreads
from kwire.net.connection import Connection
from kwire.net.framing import BufferPool, Framer
from kwire.net.limits import Limits
from kwire.net.listener import Listener
from kwire.net.readiness import ReadinessPoller, WatchedSocket
from kwire.net.request_memory import RequestMemory
from kwire.net.send import Sender
from kwire.net.server import NetServer
from kwire.net.write_coalescer import WriteCoalescer
from tests.support.net.node import Echo
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 20_000
IDLE_S: Final = 600


@attrs.frozen
class Connected:
    """The server of a node, and the meter of its process."""

    server: NetServer
    meter: TurnMeter

    def connections(self) -> list[Connection]:
        return sorted(self.server.connections, key=lambda connection: connection.port)


def connection_of(
    listener: Listener, sock: socket.socket, port: int, poller: ReadinessPoller
) -> Connection:
    """Return a connection that nobody serves; all of them share a socket."""
    memory = RequestMemory(1 << 20, trio.current_time)
    connection = Connection(
        sock=sock,
        listener=listener,
        host="127.0.0.1",
        port=port,
        requests=Echo(),
        framer=Framer(1 << 20, BufferPool()),
        sender=Sender(sock, DiskThreads(), trio.current_time),
        memory=memory,
        buffers=BufferPool(),
        coalescer=WriteCoalescer(),
        now=trio.current_time,
        last_active=trio.current_time(),
        start=lambda task: None,
    )
    connection.readiness = WatchedSocket(port, lambda: None, poller)
    return connection


@asynccontextmanager
async def node_with_connections(meter: TurnMeter) -> AsyncIterator[Connected]:
    server = NetServer(Limits(connections_max_idle_ms=IDLE_S * 1000))
    server.bind("PLAINTEXT", "127.0.0.1", 0)
    (listener,) = server.listeners.values()
    poller = ReadinessPoller()
    with socket.socket() as sock:
        for port in range(ALL):
            server.connections.add(connection_of(listener, sock, port, poller))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield Connected(server, meter)
            server.connections.clear()
            nursery.cancel_scope.cancel()
    poller.close()


CONNECTED: Final = Scene("connections of a node", node_with_connections)
row = CONNECTED.operation


@row("choice of a connection that makes room for a node of the cluster", "connections", ALL)
async def choose(connected: Connected, size: int) -> None:
    connections = connected.connections()
    for connection in connections[: size // 2]:
        connection.last_active = trio.current_time() + 1
    await trio.lowlevel.checkpoint()
    with connected.meter.measuring():
        oldest = await connected.server.acceptor.find_oldest()
    assert oldest in connections[size // 2 :]


@row("search for idle connections", "connections", ALL, "net.server._close_idle")
async def close_idle(connected: Connected, size: int) -> None:
    """The first search finds none; half of the clients are idle at the next."""
    busy, idle = connected.connections()[: size // 2], connected.connections()[size // 2 :]
    for connection in busy:
        connection.last_active = trio.current_time() + IDLE_S
    with connected.meter.measuring():
        await trio.sleep(IDLE_S + IDLE_S / 32)
    assert {connection.reason for connection in idle} == {"idle"}
    assert {connection.reason for connection in busy} == {""}
