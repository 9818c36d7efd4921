"""Three nodes that reach each other over TLS only, each with its own certificate, with kills."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.cluster.nodes import REPLICATED, Cluster
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from compat_tests.tls.stores import write_store, write_trusted

TLS = {
    "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
    "inter.broker.listener.name": "PLAINTEXT",
    "ssl.client.auth": "required",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}
"""The listeners keep the names that all clusters of these tests have."""


def make_cluster(directory: Path, *kinds: str, **settings: str) -> Cluster:
    """Return nodes of these kinds, configured but not started; `_` in a name stands for a dot."""
    trusted = write_trusted(directory)
    client = write_store(directory, "client")
    context = ssl.create_default_context(cafile=str(trusted))
    context.load_cert_chain(client.both)
    more = {name.replace("_", "."): value for name, value in settings.items()}
    new = Cluster(directory, {**REPLICATED, **TLS, "ssl.truststore.location": str(trusted), **more})
    for node_id, kind in enumerate(kinds, 1):
        new.add(node_id, kind).tls = context
        write_store(directory, f"node-{node_id}")
    for node in new.nodes.values():
        own = {"ssl.keystore.location": str(directory / f"node-{node.id}.pem")}
        kafka.write_properties(node.config, {**new.properties(node), **own})
    return new


@pytest.fixture
def cluster(tmp_path: Path, broker_kind: str) -> Iterator[Cluster]:
    new = make_cluster(tmp_path, *[broker_kind] * 3)
    yield new
    new.close()


def client_settings(cluster: Cluster) -> dict[str, Any]:
    directory = cluster.directory
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(directory / "trusted-test.pem"),
        "ssl.certificate.location": str(directory / "client.crt"),
        "ssl.key.location": str(directory / "client.key"),
    }


def test_three_nodes_lose_nothing_when_each_is_killed(cluster: Cluster, topic: str) -> None:
    cluster.start()
    settings = client_settings(cluster)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    # One request at a time: a batch behind one that a new leader refuses for now would begin a new
    # session, in which librdkafka repeats what was stored without an answer (librdkafka #4953).
    in_turn = {"max.in.flight.requests.per.connection": 1}
    producer = Producer({**settings, **in_turn, "acks": "all", "enable.idempotence": True})
    acknowledged: list[bytes] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.wait(0.002):
            producer.produce(topic, b"%d" % number, on_delivery=on_delivery)
            producer.poll(0)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for node in cluster.nodes.values():
            count = len(acknowledged)
            eventually(lambda: len(acknowledged) > count + 200, "records are acknowledged")  # noqa: B023
            node.kill()
            count = len(acknowledged)
            eventually(lambda: len(acknowledged) > count + 200, "the others go on")  # noqa: B023
            node.launch()
            cluster.wait_complete()
            eventually(lambda: in_sync(admin, topic) == 3, "all replicas are in sync")
    finally:
        stop.set()
        thread.join()
    assert producer.flush(60) == 0
    assert read(settings, topic, len(acknowledged)) == acknowledged


def in_sync(admin: Any, topic: str) -> int:
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return len(partitions[0].isrs) if partitions else 0


def read(settings: dict[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.consume(min(500, count - len(values)), timeout=30)
        assert messages, f"{len(values)} of {count}"
        values += [message.value() or b"" for message in messages]
    consumer.close()
    return values


def test_node_with_a_foreign_certificate_stays_outside(cluster: Cluster, tmp_path: Path) -> None:
    """The other two go on; it gets in once it has a certificate of their authority."""
    foreign = write_store(tmp_path, "node-3", authority_name="other")
    cluster.configure()
    for node in cluster.nodes.values():
        node.prepare()
        node.launch()
    first = cluster.nodes[1]
    eventually(lambda: first.brokers_seen() == {1, 2}, cluster.tails)
    assert cluster.nodes[3].brokers_seen() == set()
    assert foreign.both.exists()
    cluster.nodes[3].kill()
    write_store(tmp_path, "node-3")
    cluster.nodes[3].launch()
    cluster.wait_complete()


@pytest.mark.with_apache
def test_apache_kafka_and_kwire_reach_each_other(tmp_path: Path, topic: str) -> None:
    # A node that a busy machine stops for seconds stays a leader.
    sessions = {"broker_session_timeout_ms": "30000"}
    cluster = make_cluster(tmp_path, "kwire", "kwire", "kafka", **sessions)
    try:
        cluster.start()
        settings = client_settings(cluster)
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
        producer = Producer({**settings, "acks": "all"})
        errors: list[Any] = []
        for number in range(300):
            producer.produce(
                topic,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(60) == 0
        assert errors == [None] * 300
        leaders = {
            part.leader for part in admin.list_topics(topic).topics[topic].partitions.values()
        }
        assert leaders == {1, 2, 3}, "each node leads a partition that the others copy"
    finally:
        cluster.close()
