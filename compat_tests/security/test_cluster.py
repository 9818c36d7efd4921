"""Nodes that log in to each other: to controllers with PLAIN, to brokers with SCRAM."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster.nodes import BROKER, COMBINED, FEATURES, Cluster
from compat_tests.confluent_kafka.clients import admin, create, deliver, read
from compat_tests.harness.wait import eventually
from compat_tests.security.brokers import PLAIN_MODULE, SCRAM_MODULE
from compat_tests.security.nodes import configure

ACCOUNT = 'username="node" password="node-secret"'
SETTINGS = {
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT,"
    "CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {ACCOUNT} "
    'user_node="node-secret";',
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required {ACCOUNT};",
    "listener.name.brokers.scram-sha-512.connections.max.reauth.ms": "5000",
}
USER = "SCRAM-SHA-512=[name=node,password=node-secret]"


@pytest.mark.single
@pytest.mark.parametrize(
    "other_is_controller", [False, True], ids=["kafka joins", "kafka controls"]
)
def test_kafka_and_the_broker_under_test_log_in_to_each_other(
    broker_kind: str, tmp_path: Path, topic: str, other_is_controller: bool
) -> None:
    kinds = ("kafka", broker_kind) if other_is_controller else (broker_kind, "kafka")
    cluster = Cluster(tmp_path, SETTINGS)
    try:
        for number, (kind, roles) in enumerate(zip(kinds, (COMBINED, BROKER), strict=True), 1):
            cluster.add(number, kind, roles)
        for node in cluster.nodes.values():
            configure(cluster, node)
            run = node.format("--add-scram", USER, features=FEATURES)
            assert run.returncode == 0, run.stdout + run.stderr
            node.launch()
        cluster.wait_complete()
        create(cluster.bootstrap, topic, replicas=2)

        def is_replicated() -> bool:
            metadata = admin(cluster.bootstrap).list_topics(topic, timeout=10)
            return len(metadata.topics[topic].partitions[0].isrs) == 2

        eventually(is_replicated, cluster.tails)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        deliver(producer, [{"topic": topic, "value": b"%d" % n} for n in range(50)])
        assert len(read(cluster.bootstrap, topic, 50)) == 50
        assert is_replicated()
    finally:
        cluster.close()
