"""Nodes of a cluster that log in to each other."""

import re
from pathlib import Path

import pytest
import trio

from kwire.cluster.ports import free_ports
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.configs.load import broker_config
from kwire.node.server import Server
from kwire.security.scram_arguments import parse_credential
from kwire.storage_format.directories import format_node
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import new_node

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
ACCOUNT = 'username="node" password="secret"'
CONTROLLERS_JAAS = "listener.name.controller.plain.sasl.jaas.config"


def settings(node: int, port: int, directory: Path) -> dict[str, str]:
    """Return the settings of a node; the first one is the controller, on ``port``."""
    controllers = f",CONTROLLER://127.0.0.1:{port}" if node == 1 else ""
    return {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": str(node),
        "listeners": f"CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0{controllers}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "log.dirs": str(directory / f"data-{node}"),
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        CONTROLLERS_JAAS: f'{PLAIN} required {ACCOUNT} user_node="secret";',
        "listener.name.brokers.scram-sha-256.sasl.jaas.config": f"{SCRAM} required {ACCOUNT};",
    }


def format_and_build(settings: dict[str, str]) -> Server:
    config = broker_config(settings)
    users = (parse_credential("SCRAM-SHA-256=[name=node,password=secret]", b"salt"),)
    list(format_node(config, CLUSTER, False, extra=users))
    return new_node(config)


async def create_replicated(server: Server) -> None:
    """Create a topic with two replicas, and wait until both are in sync."""
    shape = CreateTopicsRequest.CreatableTopic
    topic = shape(name="t", num_partitions=1, replication_factor=2)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    async with await TrioWireClient.connect(*server.core.net.address("CLIENTS")) as client:
        assert [t.error_code for t in (await client.call(request, 7)).topics] == [0]
        with trio.fail_after(30):
            isr: list[int] = []
            while len(isr) < 2:
                response = await client.call(MetadataRequest(topics=None), 12)
                isr = response.topics[0].partitions[0].isr_nodes
                await trio.sleep(0.05)


@pytest.mark.slow
async def test_nodes_log_in_to_controllers_and_to_each_other(tmp_path: Path) -> None:
    """A broker registers with PLAIN, and copies partitions as a user of the metadata."""
    (port,) = free_ports(1)
    async with trio.open_nursery() as nursery:
        servers = [format_and_build(settings(node, port, tmp_path)) for node in (1, 2)]
        for server in servers:
            with trio.fail_after(60):
                await nursery.start(server.run)
        await create_replicated(servers[0])
        logged_in = re.compile(r'successful_authentication_total{listener="BROKERS"} [1-9]')
        with trio.fail_after(30):  # Both replicas are in sync from the start.
            counts = [""]
            while not any(map(logged_in.search, counts)):
                await trio.sleep(0.05)
                counts = [server.core.metrics.text() for server in servers]
        assert all('failed_authentication_total{listener="BROKERS"} 0' in text for text in counts)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_node_with_a_wrong_password_does_not_join(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    wrong = settings(2, port, tmp_path)
    wrong[CONTROLLERS_JAAS] = wrong[CONTROLLERS_JAAS].replace('password="secret"', 'password="x"')
    async with trio.open_nursery() as nursery:
        await nursery.start(format_and_build(settings(1, port, tmp_path)).run)
        server = format_and_build(wrong)
        nursery.start_soon(server.run)
        with trio.fail_after(30):
            for _ in iter(lambda: "login refused by another node" in caplog.text, True):
                await trio.sleep(0.05)
        assert not server.ready.is_set()
        nursery.cancel_scope.cancel()
