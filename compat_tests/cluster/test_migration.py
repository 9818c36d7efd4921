"""A rolling migration from Apache Kafka to kwire on the same data directories, and back.

The procedure of docs/operations.md, "Move a cluster from Apache Kafka to kwire, and back", with an
idempotent producer, a transactional one and a group that go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster import mixed
from compat_tests.cluster.mixed import (
    PARTITIONS,
    START_SECONDS,
    GroupLoad,
    IdempotentLoad,
    Load,
    TransactionalLoad,
    create,
    read,
    running,
    until_done,
    wait_all_in_sync,
    wait_equal,
)
from compat_tests.cluster.nodes import Cluster, stop_in_order
from compat_tests.cluster.tools import ELECTION, by_broker
from compat_tests.cluster.tools import feature_levels as levels_of
from compat_tests.harness.jvm import Jvm
from kwire.types import CONSUMER_OFFSETS, TRANSACTION_STATE

pytestmark = pytest.mark.with_apache


@pytest.fixture(params=[False, True], ids=["static", "dynamic"])
def cluster(request, jvm: Jvm, tmp_path: Path):
    cluster = mixed.start(jvm, tmp_path / "cluster", ["kafka"] * 3, dynamic=request.param)
    yield cluster
    cluster.close()


def roll(
    jvm: Jvm, cluster: Cluster, kind: str, topics: Iterable[str], loads: Iterable[Load]
) -> None:
    """Stop each node, have the other kind open its directory, and wait until all are in sync."""
    active = cluster.active()
    for node in sorted(cluster.brokers, key=lambda node: node is active):
        stop_in_order(node)
        node.kind = kind
        for load in loads:
            load.wait_more()
        node.launch()
        cluster.wait_complete(START_SECONDS)
        wait_all_in_sync(cluster, *topics)
        for load in loads:
            load.wait_more()
    how = ("--election-type", "preferred", "--all-topic-partitions")
    jvm.tool(ELECTION, *by_broker(cluster), *how).ok()


def feature_levels(jvm: Jvm, cluster: Cluster) -> dict[str, str]:
    """Return the finalized level of each feature."""
    return {name: level for name, (_, _, level) in levels_of(jvm, by_broker(cluster)).items()}


def test_cluster_moves_to_kwire_and_back(jvm: Jvm, cluster: Cluster) -> None:
    """Nodes change their kind under load, nothing is lost (invariants 1, 3, 6, 23, 72, 108)."""
    levels = feature_levels(jvm, cluster)
    assert levels["group.version"] == levels["eligible.leader.replicas.version"] == "1"
    create(cluster, "orders")
    create(cluster, "orders-tx")
    create(cluster, "open")
    produced = IdempotentLoad(cluster, "orders", cluster.bootstrap)
    transactions = TransactionalLoad(cluster, "orders-tx", cluster.bootstrap)
    group = GroupLoad(cluster, "orders", cluster.bootstrap)
    loads = (produced, transactions, group)
    long = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": "long",
            "transaction.timeout.ms": 900_000,
        }
    )
    until_done(lambda: long.init_transactions(10))
    topics = ("orders", "orders-tx", "open", CONSUMER_OFFSETS, TRANSACTION_STATE)
    with running(*loads):
        for kind in ("kwire", "kafka"):
            long.begin_transaction()
            for index in range(PARTITIONS):
                long.produce("open", f"before {kind}".encode(), partition=index)
            long.flush(60)
            roll(jvm, cluster, kind, topics, loads)
            until_done(lambda: long.commit_transaction(10))
            assert feature_levels(jvm, cluster) == levels
            for index in range(PARTITIONS):
                wait_equal(cluster, "open", index)
    produced.check()
    transactions.check()
    group.check(produced.acknowledged)
    for index in range(PARTITIONS):
        for topic in ("orders", "orders-tx", "open"):
            wait_equal(cluster, topic, index)
        values = read(cluster, "open", index, 2, committed=True)
        assert values == [b"before kwire", b"before kafka"]
