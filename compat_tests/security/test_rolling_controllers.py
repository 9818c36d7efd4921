"""The listener of controllers changes from PLAINTEXT to SASL_SSL, while clients work.

Controllers have two listeners for a while, and are restarted one by one. The recipe is that of
docs/security.md.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.cluster.nodes import (
    BROKER,
    COMBINED,
    CONTROLLER,
    LOOPBACK,
    REPLICATED,
    Cluster,
    Node,
    stop_in_order,
)
from compat_tests.harness.broker import kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.security.steady_load import GAP_S, Load, wait_in_sync
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.secure.folder import SecureFolder
from kwire.types import METADATA_TOPIC

pytestmark = [pytest.mark.single, pytest.mark.long]
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
BOTH, SWITCHED, SECURED = ("CONTROLLER", "SECURED"), ("SECURED", "CONTROLLER"), ("SECURED",)
"""The listeners of controllers in each step; nodes connect to the first one."""


@attrs.define(eq=False)
class Change:
    """The nodes, and the ports of their new listeners."""

    cluster: Cluster
    folder: SecureFolder
    ports: dict[int, int]

    def properties(self, node: Node, names: tuple[str, ...]) -> dict[str, str]:
        """Return a node's properties with these listeners of controllers."""
        properties = self.cluster.properties(node)
        listeners = [f"PLAINTEXT://{node.address}"] if node.is_broker else []
        if node.is_controller:
            ports = {"CONTROLLER": node.controller_port, "SECURED": self.ports[node.id]}
            listeners += [f"{name}://{LOOPBACK}:{ports[name]}" for name in names]
        if names[0] == "SECURED":
            voters = {n.id: f"{LOOPBACK}:{self.ports[n.id]}" for n in self.cluster.controllers}
            if self.cluster.dynamic:
                properties["controller.quorum.bootstrap.servers"] = ",".join(voters.values())
            else:
                pairs = [f"{number}@{address}" for number, address in voters.items()]
                properties["controller.quorum.voters"] = ",".join(pairs)
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "SECURED": "SASL_SSL"}
        account = 'username="node" password="secret" user_node="secret"'
        return {
            **properties,
            "listeners": ",".join(listeners),
            "controller.listener.names": ",".join(names),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {account};",
            "listener.name.secured.ssl.keystore.type": "PEM",
            "listener.name.secured.ssl.keystore.location": str(self.folder.server),
            "listener.name.secured.ssl.truststore.type": "PEM",
            "listener.name.secured.ssl.truststore.location": str(self.folder.authority),
        }

    def roll(self, clients: dict[str, Any], names: tuple[str, ...]) -> None:
        """Restart the nodes one by one with other listeners of controllers."""
        for node in sorted(self.cluster.nodes.values(), key=lambda each: each.is_broker):
            stop_in_order(node)
            kafka.write_properties(node.config, self.properties(node, names))
            node.launch()
            wait_in_sync(self.cluster, clients)
            if self.cluster.dynamic and node.is_controller:
                has_listeners = partial(self.has_listeners, node, names)
                eventually(has_listeners, self.cluster.tails, 60)

    def has_listeners(self, node: Node, names: tuple[str, ...]) -> bool:
        """Return whether the quorum knows these listeners of a controller."""
        topic = DescribeQuorumRequest.TopicData
        part = topic.PartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[topic(topic_name=METADATA_TOPIC, partitions=[part])]
        )
        broker = next(each for each in self.cluster.brokers if each.id != node.id)
        with broker.client() as client:
            nodes = client.call(request, 2).nodes
        listeners = {each.node_id: {e.name for e in each.listeners} for each in nodes}
        return listeners.get(node.id) == set(names)


@pytest.mark.parametrize(
    ("roles", "dynamic"),
    [
        ([COMBINED] * 3, True),
        ([COMBINED] * 3, False),
        ([CONTROLLER] * 3 + [BROKER] * 3, True),
    ],
    ids=["combined", "combined, static voters", "separate"],
)
def test_controllers_become_protected_without_a_gap(
    roles: list[str], dynamic: bool, broker_kind: str, tmp_path: Path, topic: str
) -> None:
    folder = SecureFolder(tmp_path / "secure")
    folder.fill([LOOPBACK], time.time_ns() // 1_000_000)
    cluster = Cluster(tmp_path, REPLICATED, dynamic=dynamic)
    for number, role in enumerate(roles, 1):
        cluster.add(number, broker_kind, role)
    ports = dict(zip(cluster.nodes, new_ports(len(cluster.nodes)), strict=True))
    change = Change(cluster, folder, ports)
    load: Load | None = None
    try:
        if dynamic:
            cluster.start_with_initial_controllers()
        else:
            cluster.start()
        clients: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
        admin = AdminClient(clients)
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(60)
        load = Load(clients, topic, "steady")
        load.start()
        for names in (BOTH, SWITCHED, SECURED):
            change.roll(clients, names)
        after = f"{topic}-after"
        admin.create_topics([NewTopic(after, 3, 3)])[after].result(60)
        assert len(load.acknowledged) > 100

        def has_everything() -> bool:
            return {*load.acknowledged} <= load.values

        eventually(has_everything, lambda: str((len(load.acknowledged), len(load.values))), 60)
        load.stop()
        print(f"longest time without an acknowledgement: {load.gap_s:.1f} s")
        assert load.failures == []
        assert load.gap_s < GAP_S
    finally:
        if load is not None:
            load.stop()
        cluster.close()
