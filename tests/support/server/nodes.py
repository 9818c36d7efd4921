"""Nodes on free ports of this machine, with their data in a folder of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.configs.broker import BrokerConfig
from kwire.configs.load import broker_config
from kwire.handlers.shared.context import BrokerServices
from kwire.node.environment import this_computer
from kwire.node.server import Server, make_node
from kwire.testing.wire import TrioWireClient


def config(directory: Path, **changes: str) -> BrokerConfig:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "log.dirs": str(directory),
    }
    named = {key.replace("_", "."): value for key, value in changes.items()}
    return broker_config({**properties, **named})


def new_node(config: BrokerConfig) -> Server:
    """Return a node of this computer, which does not run yet."""
    return make_node(config, this_computer())


def parts_of(server: Server) -> BrokerServices:
    """Return the parts of a node's broker."""
    broker = server.services.broker
    assert broker is not None
    return broker


@asynccontextmanager
async def running(directory: Path, **changes: str) -> AsyncIterator[Server]:
    """Run a node that serves; stop it in order at the end."""
    server = new_node(config(directory, **changes))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        server.stop()


async def create(server: Server, topic: str, partitions: int = 1) -> int:
    """Create a topic; return the error code."""
    shape = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[shape(name=topic, num_partitions=partitions, replication_factor=1)],
        timeout_ms=10_000,
    )
    async with await TrioWireClient.connect(*server.address) as client:
        response = await client.call(request, 7)
    code: int = response.topics[0].error_code
    return code


async def topics(server: Server) -> set[str]:
    async with await TrioWireClient.connect(*server.address) as client:
        response = await client.call(MetadataRequest(topics=None), 12)
    return {topic.name for topic in response.topics if topic.name is not None}
