"""Nodes whose brokers have a listener among themselves, and pairs of nodes of different kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster.nodes import BROKER, COMBINED, FEATURES, LOOPBACK, Cluster, Node
from compat_tests.confluent_kafka.clients import admin, create, deliver, read
from compat_tests.harness.broker import kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually

each_order = pytest.mark.parametrize(
    "other_is_controller", [False, True], ids=["kafka joins", "kafka controls"]
)
"""The node of Apache Kafka joins the one under test, or controls it."""
each_order_in_the_long_run = pytest.mark.parametrize(
    "other_is_controller",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["kafka joins", "kafka controls"],
)
"""The same, the second order only in the long run: nodes that log in without tokens make both."""


def configure(cluster: Cluster, node: Node) -> None:
    """Write the node's properties, with a listener for other brokers."""
    properties = cluster.properties(node)
    (port,) = new_ports(1)
    own = f"BROKERS://{LOOPBACK}:{port}"
    properties["advertised.listeners"] = f"PLAINTEXT://{node.address},{own}"
    properties["listeners"] = f"{own},{properties['listeners']}"
    kafka.write_properties(node.config, properties)


@contextmanager
def run_pair(
    directory: Path,
    settings: Mapping[str, str],
    broker_kind: str,
    *format_arguments: str,
    other_is_controller: bool,
) -> Iterator[Cluster]:
    """Run a node of the kind under test and one of Apache Kafka, one of which is a controller."""
    kinds = ("kafka", broker_kind) if other_is_controller else (broker_kind, "kafka")
    # A node that a busy machine stops for seconds stays in sync.
    cluster = Cluster(directory, {"broker.session.timeout.ms": "30000", **settings})
    try:
        for number, (kind, roles) in enumerate(zip(kinds, (COMBINED, BROKER), strict=True), 1):
            cluster.add(number, kind, roles)
        for node in cluster.nodes.values():
            configure(cluster, node)
            node.prepare(*format_arguments, features=FEATURES)
            node.launch()
        cluster.wait_complete()
        yield cluster
    finally:
        cluster.close()


def check_replication(cluster: Cluster, topic: str) -> None:
    """Check that both nodes of a pair have what clients write, and stay in sync."""
    create(cluster.bootstrap, topic, replicas=2)

    def is_replicated() -> bool:
        partitions = (
            admin(cluster.bootstrap).list_topics(topic, timeout=30).topics[topic].partitions
        )
        return bool(partitions) and len(partitions[0].isrs) == 2

    eventually(is_replicated, cluster.tails)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    deliver(producer, [{"topic": topic, "value": b"%d" % n} for n in range(50)])
    assert len(read(cluster.bootstrap, topic, 50)) == 50
    assert is_replicated()
