"""Three nodes change from PLAINTEXT to SASL_SSL one after the other, while clients work.

The recipe is that of docs/security.md. One of the nodes is Apache Kafka's.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.cluster.nodes import LOOPBACK, REPLICATED, Cluster, Node, stop_in_order
from compat_tests.harness.broker import ROOT, kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import SCRAM_MODULE
from compat_tests.security.steady_load import GAP_S, Load, wait_in_sync
from kwire.secure.folder import SecureFolder
from kwire.secure.location import ADMIN
from kwire.secure.settings import NODE, librdkafka_settings

pytestmark = [pytest.mark.single, pytest.mark.long, pytest.mark.with_apache]


@attrs.define(eq=False)
class Change:
    """The nodes, and what the change has come to."""

    cluster: Cluster
    folder: SecureFolder
    topic: str
    secure_ports: dict[int, int]

    @property
    def secure(self) -> dict[str, Any]:
        servers = ",".join(f"{LOOPBACK}:{port}" for port in self.secure_ports.values())
        password = self.folder.passwords.admin
        return dict(librdkafka_settings(servers, password, self.folder.authority))

    @property
    def plain(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.cluster.bootstrap}

    def properties(self, node: Node, *, between: str, has_plain: bool) -> dict[str, str]:
        """Return a node's properties with the new listener."""
        properties = self.cluster.properties(node)
        names = {"CONTROLLER": "PLAINTEXT", "SECURE": "SASL_SSL"}
        listeners = [f"SECURE://{LOOPBACK}:{self.secure_ports[node.id]}"]
        if has_plain:
            names["PLAINTEXT"] = "PLAINTEXT"
            listeners.append(f"PLAINTEXT://{node.address}")
        account = f'username="{NODE}" password="{self.folder.passwords.node}"'
        return {
            **properties,
            "listeners": ",".join([*listeners, f"CONTROLLER://{LOOPBACK}:{node.controller_port}"]),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in names.items()),
            "inter.broker.listener.name": between,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required "
            f"{account};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder.authority),
        }

    def roll(self, clients: dict[str, Any], *, between: str, has_plain: bool) -> None:
        """Restart the nodes one by one with other properties; wait for all replicas each time."""
        for node in self.cluster.nodes.values():
            stop_in_order(node)
            own = self.properties(node, between=between, has_plain=has_plain)
            kafka.write_properties(node.config, own)
            node.launch()
            wait_in_sync(self.cluster, clients)


def add_user(bootstrap: str, name: str, password: str) -> None:
    command = [str(ROOT / "scripts" / "kwire"), "users", "add", name, "--password-file", "-"]
    command += ["--bootstrap-server", bootstrap]
    done = subprocess.run(command, input=password, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cluster_becomes_protected_without_a_gap(tmp_path: Path, topic: str) -> None:
    folder = SecureFolder(tmp_path / "secure")
    folder.fill([LOOPBACK], time.time_ns() // 1_000_000)
    overrides = {**REPLICATED, "offsets.topic.num.partitions": "1"}
    cluster = Cluster(tmp_path, overrides)
    for number, kind in enumerate(("kwire", "kwire", "kafka"), 1):
        cluster.add(number, kind)
    change = Change(cluster, folder, topic, dict(zip(cluster.nodes, new_ports(3), strict=True)))
    plain = Load(change.plain, topic, "plain")
    secure = Load(change.secure, topic, "secure")
    try:
        cluster.start()
        admin = AdminClient(change.plain)
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(60)
        plain.start()
        add_user(cluster.bootstrap, ADMIN, folder.passwords.admin)
        add_user(cluster.bootstrap, NODE, folder.passwords.node)
        change.roll(change.plain, between="PLAINTEXT", has_plain=True)
        secure.start()
        change.roll(change.plain, between="SECURE", has_plain=True)
        plain.stop()
        change.roll(change.secure, between="SECURE", has_plain=False)
        expected = {*plain.acknowledged}
        assert len(expected) > 100

        def has_everything() -> bool:
            return {*plain.acknowledged, *secure.acknowledged} <= plain.values | secure.values

        eventually(has_everything, lambda: str((len(plain.values), len(secure.values))), 60)
        secure.stop()
        print(f"longest time without an acknowledgement: {plain.gap_s:.1f} s, {secure.gap_s:.1f} s")
        assert plain.failures + secure.failures == []
        assert max(plain.gap_s, secure.gap_s) < GAP_S
    finally:
        plain.stop()
        secure.stop()
        cluster.close()
