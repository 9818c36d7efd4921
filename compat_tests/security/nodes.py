"""The properties of nodes whose brokers have a listener among themselves."""

from __future__ import annotations

from compat_tests.cluster.nodes import LOOPBACK, Cluster, Node
from compat_tests.harness.broker import kafka
from compat_tests.harness.ports import new_ports


def configure(cluster: Cluster, node: Node) -> None:
    """Write the node's properties, with a listener for other brokers."""
    properties = cluster.properties(node)
    (port,) = new_ports(1)
    own = f"BROKERS://{LOOPBACK}:{port}"
    properties["advertised.listeners"] = f"PLAINTEXT://{node.address},{own}"
    properties["listeners"] = f"{own},{properties['listeners']}"
    kafka.write_properties(node.config, properties)
