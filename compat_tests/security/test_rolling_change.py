"""Three nodes change from PLAINTEXT to SASL_SSL one after the other, while clients work.

The recipe is that of docs/security.md. One of the nodes is Apache Kafka's.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.cluster.nodes import LOOPBACK, REPLICATED, Cluster, Node, stop_in_order
from compat_tests.harness.broker import ROOT, kafka
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import SCRAM_MODULE
from kwire.secure.folder import SecureFolder
from kwire.secure.location import ADMIN
from kwire.secure.settings import NODE, librdkafka_settings

pytestmark = [pytest.mark.single, pytest.mark.long]

GAP_S = 20.0
"""The longest time without an acknowledged record: several elections on a slow machine."""


@attrs.define(eq=False)
class Load:
    """A producer and a consumer that run until they are stopped."""

    settings: dict[str, Any]
    topic: str
    name: str
    acknowledged: list[bytes] = attrs.field(factory=list)
    acknowledged_at: list[float] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    values: set[bytes] = attrs.field(factory=set)
    _end: threading.Event = attrs.field(factory=threading.Event)
    _threads: list[threading.Thread] = attrs.field(factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=run) for run in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(120)

    @property
    def gap_s(self) -> float:
        pairs = zip(self.acknowledged_at, self.acknowledged_at[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)

    def _produce(self) -> None:
        producer = Producer({**self.settings, "enable.idempotence": True})
        number = 0
        while not self._end.is_set():
            producer.produce(self.topic, f"{self.name}-{number}", on_delivery=self._on_delivery)
            number += 1
            producer.poll(0.02)
        producer.flush(60)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged.append(message.value() or b"")
        self.acknowledged_at.append(time.monotonic())

    def _consume(self) -> None:
        own = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.settings, **own})
        consumer.subscribe([self.topic])
        while not self._end.is_set():
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                self.values.add(message.value() or b"")
        consumer.close()


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
            self.wait_in_sync(clients)

    def wait_in_sync(self, clients: dict[str, Any]) -> None:
        def is_in_sync() -> bool:
            try:
                metadata = AdminClient(clients).list_topics(timeout=5)
            except KafkaException:
                return False
            partitions = [p for t in metadata.topics.values() for p in t.partitions.values()]
            return len(metadata.brokers) == 3 and all(len(p.isrs) == 3 for p in partitions)

        eventually(is_in_sync, self.cluster.tails, 120)


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
