"""Producers against each level of `transaction.version`, and over changes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.cluster.nodes import Cluster
from compat_tests.cluster.tools import FEATURES, by_broker
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.kafka_python.clients import create, read
from kwire.codec.messages.api_versions import ApiVersionsRequest

FEATURE = "transaction.version"
TRANSACTIONS = 6
EPOCHS = {0: [0] * TRANSACTIONS, 1: [0] * TRANSACTIONS, 2: list(range(1, TRANSACTIONS + 1))}
"""The epoch after each transaction of a Java producer: level 2 raises it at every end (KIP-890)."""
CHANGES = (1, 0, 1, 2, 0, 2)


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(
        1,
        transaction_state_log_replication_factor="1",
        transaction_state_log_min_isr="1",
    )
    cluster.start(features=())
    return cluster


def finalize(jvm: Jvm, cluster: Cluster, level: int) -> None:
    """Change the finalized level and wait until clients see it."""
    current = read_level(cluster)
    direction = "upgrade" if level > current else "downgrade"
    jvm.tool(FEATURES, *by_broker(cluster), direction, "--feature", f"{FEATURE}={level}").ok()
    eventually(lambda: read_level(cluster) == level, f"level {level}")


def read_level(cluster: Cluster) -> int:
    with cluster.nodes[1].client() as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = client.call(request, 4)
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return levels.get(FEATURE, 0)


def has_ended(address: str, topic: str) -> bool:
    """Return whether no transaction is open in partition 0 of a topic."""
    ends = []
    for level in ("read_uncommitted", "read_committed"):
        settings = {"bootstrap.servers": address, "group.id": "unused", "isolation.level": level}
        client = Consumer(settings)
        try:
            ends.append(client.get_watermark_offsets(TopicPartition(topic, 0), 30)[1])
        finally:
            client.close()
    return ends[0] == ends[1]


def test_new_producers_follow_the_finalized_level(jvm, cluster, unique):
    assert read_level(cluster) == 2
    for level in CHANGES:
        finalize(jvm, cluster, level)
        topics = [unique("epochs"), unique("fencing")]
        for topic in topics:
            create(cluster.bootstrap, topic)
        arguments = (cluster.bootstrap, topics[0], unique("txn"))
        result = jvm.scenario("Transactions", "epochs", *arguments, str(TRANSACTIONS))
        assert result == {"epochs": EPOCHS[level], "ids": 1, "values": ["0", "2", "4"]}, level
        arguments = (cluster.bootstrap, topics[1], unique("txn"))
        fenced = jvm.scenario("Transactions", "fencing", *arguments)
        assert fenced.pop("values") == ["heir", "again"], level
        assert "none" not in fenced.values(), level


def test_producers_go_on_while_the_level_changes(broker_kind, jvm, cluster, topic, unique):
    """A producer with an open transaction ends it at another level, and begins the next one."""
    create(cluster.bootstrap, topic)
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": unique("txn")}
    settings["transaction.timeout.ms"] = "600000"
    client = Producer(settings)
    client.init_transactions(60)
    expected = []
    for number, level in enumerate(CHANGES):
        for commit in (True, False):
            client.begin_transaction()
            client.produce(topic, f"{number}-{commit}".encode())
            assert client.flush(60) == 0
            if commit:
                finalize(jvm, cluster, level)
                expected.append(f"{number}-{commit}")
                client.commit_transaction(60)
            else:
                client.abort_transaction(60)
        if number % 2:
            if broker_kind == "kafka":
                # Killed earlier, 4.3.1 forgets this abort, and a later commit commits its record.
                eventually(partial(has_ended, cluster.bootstrap, topic), "a marker")
            cluster.nodes[1].kill()
            cluster.nodes[1].launch()
            cluster.wait_complete()
    committed = read(cluster.bootstrap, topic, len(expected), isolation_level="read_committed")
    assert [record.value.decode() for record in committed] == expected
