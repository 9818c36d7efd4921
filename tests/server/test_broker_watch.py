"""A controller's connections to other brokers, over real sockets."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import attrs
import pytest
import trio

from kwire.clock import SystemClock
from kwire.codec.messages import metadata_records as r
from kwire.net import idle_connection
from kwire.net.connection_pool import Network
from kwire.node.broker_watch import BrokerWatch
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.delivery import LeaderAndEpoch
from tests.support.raftmeta.clusters import Cluster, registration
from tests.support.raftmeta.one_leader import OneLeader, active_controller

PATIENCE_S = 30.0


@attrs.define(eq=False)
class Process:
    """A process that listens, and that can end."""

    listener: socket.socket = attrs.field(factory=socket.socket)
    connections: list[trio.SocketStream] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.listener.setblocking(False)

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    async def accept(self) -> None:
        """Wait for a connection."""
        with trio.fail_after(PATIENCE_S):
            await trio.lowlevel.wait_readable(self.listener)
        sock, _ = self.listener.accept()
        self.connections.append(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))

    async def close_connections(self) -> None:
        for stream in self.connections:
            await stream.aclose()
        self.connections.clear()

    async def reset_connections(self) -> None:
        for stream in self.connections:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.close_connections()

    async def end(self) -> None:
        self.listener.close()
        await self.close_connections()


@asynccontextmanager
async def watch(process: Process, *, is_active: bool = True) -> AsyncIterator[Controller]:
    """Watch ``process``, as broker 2, from node 1; brokers 1 and 3 are not reachable."""
    cluster = Cluster((1, 3))
    endpoint: Any = r.RegisterBrokerRecord.BrokerEndpoint
    record = registration(2)
    record.end_points = [
        endpoint(name="PLAINTEXT", host="127.0.0.1", port=process.port, security_protocol=0)
    ]
    cluster.write(record)
    controller = active_controller(OneLeader(at_once=True), cluster)
    if not is_active:
        controller.on_leadership(LeaderAndEpoch(3, 6))
    publisher: Any = controller._publisher
    clock = SystemClock()
    network = Network(clock, Random(1))
    brokers = BrokerWatch(1, "PLAINTEXT", controller, publisher, network, clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(brokers.run)
        yield controller
        nursery.cancel_scope.cancel()


async def wait_fenced(controller: Controller) -> None:
    with trio.fail_after(PATIENCE_S):
        while not controller.state.image.brokers[2].fenced:
            await controller.wait_change()


async def test_ended_process_is_fenced() -> None:
    process = Process()
    async with watch(process) as controller:
        await process.accept()
        await process.end()
        await wait_fenced(controller)
        assert not controller.state.image.brokers[3].fenced, "it was never connected"


async def test_process_that_closes_its_connections_and_still_listens_is_not_fenced() -> None:
    process = Process()
    async with watch(process) as controller:
        for _ in range(3):
            await process.accept()
            await process.close_connections()
        await process.accept()
        assert not controller.state.image.brokers[2].fenced
        await process.end()


async def test_new_active_controller_uses_the_proof_that_it_has() -> None:
    process = Process()
    async with watch(process, is_active=False) as controller:
        await process.accept()
        await process.end()
        with suppress(trio.TooSlowError), trio.fail_after(0.3):
            await wait_fenced(controller)
        assert not controller.state.image.brokers[2].fenced, "it is not the active controller"
        controller.on_leadership(LeaderAndEpoch(1, 7, is_active=True))
        await wait_fenced(controller)


async def test_connection_that_is_reset_at_once_ends_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()
    connect = idle_connection._open_stream
    is_reset = trio.Event()

    async def connect_and_be_reset(host: str, port: int, *, is_numeric: bool) -> trio.SocketStream:
        stream = await connect(host, port, is_numeric=is_numeric)
        if not is_reset.is_set():
            await process.accept()
            await process.reset_connections()
            await trio.lowlevel.wait_readable(stream.socket)
            is_reset.set()
        return stream

    monkeypatch.setattr(idle_connection, "_open_stream", connect_and_be_reset)
    async with watch(process) as controller:
        with trio.fail_after(PATIENCE_S):
            await is_reset.wait()
        await process.accept()
        assert not controller.state.image.brokers[2].fenced
        await process.end()
        await wait_fenced(controller)
