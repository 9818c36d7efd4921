"""A node reaches the outside only through the environment that it is built in."""

import os
import socket
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.configs.load import broker_config
from kwire.records.build import New, batch
from kwire.storage_format.format import DEFAULT_FEATURES
from simulation.disk import SimDisk
from simulation.replication.links import FramePool, host_of
from simulation.replication.metadata_checks import Books, durable_end
from simulation.replication.node import Cluster, SimMachine
from simulation.replication.processes import SimThreads, simulated_processes
from simulation.replication.settings import settings_of
from simulation.replication.wire import Wire

NODE = 1
LIMIT_S = 30.0
ALONE = {"min.insync.replicas": "1"}
OUTSIDE = (
    (os, "open"),
    (os, "makedirs"),
    (os, "mkdir"),
    (os, "replace"),
    (os, "scandir"),
    (os, "stat"),
    (socket, "socket"),
    (socket, "getaddrinfo"),
    (socket, "gethostname"),
)
"""The calls by which a node of this computer opens its files and sockets."""


def machine_of_one_node() -> SimMachine:
    wire, books = Wire(Random(1)), Books(1, (NODE,), {}, lambda node, what: None)
    config = broker_config(settings_of(NODE, (NODE,), 1, is_dynamic=False) | ALONE)
    return SimMachine(NODE, config, Cluster(1, wire, books, DEFAULT_FEATURES), [SimDisk()])


def refuse(name: str) -> Any:
    def call(*arguments: object, **_: object) -> None:
        raise AssertionError(f"the node called {name}{arguments}")

    return call


def create(topic: str) -> CreateTopicsRequest:
    shape = CreateTopicsRequest.CreatableTopic
    topics = [shape(name=topic, num_partitions=1, replication_factor=1)]
    return CreateTopicsRequest(topics=topics, timeout_ms=10_000)


def produce(topic: str) -> ProduceRequest:
    shape = ProduceRequest.TopicProduceData
    records = batch([New(None, b"x")], timestamp_ms=1)
    data = [shape.PartitionProduceData(index=0, records=records)]
    return ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[shape(name=topic, partition_data=data)]
    )


async def serve_clients(machine: SimMachine) -> None:
    """Start a node, create a topic, produce to it, and stop the node."""
    client = FramePool(machine.cluster.wire, -1, LIMIT_S)
    async with trio.open_nursery() as nursery:
        machine.start(nursery)
        with trio.fail_after(LIMIT_S):
            assert machine.server is not None
            await machine.server.ready.wait()
        created = await client.call(host_of(NODE), 9092, create("t"))
        assert created.topics[0].error_code == 0
        answer = await client.call(host_of(NODE), 9092, produce("t"), version=11)
        assert answer.responses[0].partition_responses[0].error_code == 0
        machine.stop()


def test_node_in_a_simulated_environment_opens_no_file_and_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(machine: SimMachine, is_watched: bool) -> None:
        with monkeypatch.context() as patches:
            for owner, name in OUTSIDE if is_watched else ():
                patches.setattr(owner, name, refuse(name))
            await serve_clients(machine)

    threads = SimThreads(Random(1))
    for is_watched in (False, True):  # The first run imports what a node loads on first use.
        machine = machine_of_one_node()
        clock = trio.testing.MockClock(autojump_threshold=0)
        with simulated_processes(1, threads):
            trio.run(main, machine, is_watched, clock=clock)
    assert durable_end(machine.metadata_disk) > 0
    assert "t-0/00000000000000000000.log" in machine.disks[0].files
    assert not machine.cluster.books.failures
