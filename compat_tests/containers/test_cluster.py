"""Three containers with the environment of a compose file of Apache Kafka become a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.containers.podman import Podman
from compat_tests.containers.round_trip import RECORDS, round_trip
from compat_tests.harness.ports import new_ports

pytestmark = [pytest.mark.long, pytest.mark.single]

NETWORK = "10.89.77"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
NODES = (1, 2, 3)
SETTINGS = {
    "CLUSTER_ID": CLUSTER_ID,
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT"
    ),
    "KAFKA_LISTENERS": "CONTROLLER://:9093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": ",".join(f"{node}@kafka-{node}:9093" for node in NODES),
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    "KAFKA_DEFAULT_REPLICATION_FACTOR": "3",
}


def arguments(node: int, port: int, network: str) -> Iterator[str]:
    """Yield the arguments of a node's container; the hosts' names stand in for a DNS server."""
    advertised = f"PLAINTEXT_HOST://localhost:{port},PLAINTEXT://kafka-{node}:19092"
    own = {"KAFKA_NODE_ID": str(node), "KAFKA_ADVERTISED_LISTENERS": advertised}
    yield f"--publish=127.0.0.1:{port}:9092"
    yield f"--hostname=kafka-{node}"
    yield f"--network={network}"
    yield f"--ip={NETWORK}.1{node}"
    yield from (f"--add-host=kafka-{other}:{NETWORK}.1{other}" for other in NODES)
    yield from (f"--env={name}={value}" for name, value in {**SETTINGS, **own}.items())


@contextmanager
def network_of(podman: Podman) -> Iterator[str]:
    """Create a network for the length of the block."""
    name = podman("network", "create", f"--subnet={NETWORK}.0/24", "kwire-cluster")
    try:
        yield name
    finally:
        podman("network", "rm", "--force", name)


def test_three_containers_form_a_cluster(podman: Podman, unique: Callable[[str], str]) -> None:
    ports = dict(zip(NODES, new_ports(3), strict=True))
    with network_of(podman) as network, ExitStack() as running:
        containers = [
            running.enter_context(podman.run(*arguments(node, port, network)))
            for node, port in ports.items()
        ]
        for container in containers:
            podman.wait_for(container, "kwire ready,")
        addresses = ",".join(f"localhost:{port}" for port in ports.values())
        topic = unique("topic")
        assert round_trip(addresses, topic, unique("group")) == RECORDS
        cluster = AdminClient({"bootstrap.servers": addresses}).list_topics(timeout=60)
        assert cluster.cluster_id == CLUSTER_ID
        assert {broker.port for broker in cluster.brokers.values()} == set(ports.values())
        assert sorted(cluster.topics[topic].partitions[0].replicas) == list(NODES)
        for container in containers:
            assert podman.code("healthcheck", "run", container) == 0
