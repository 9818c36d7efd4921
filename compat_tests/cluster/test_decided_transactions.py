"""Ends of transactions that Apache Kafka decided and could not mark, finished by both kinds.

The broker that leads the partitions is paused, so the coordinator on another one writes its
decision and no marker. Then both are killed, and their directories are opened again. Each kind
finishes what was decided; that Apache Kafka does proves the test.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster import mixed
from compat_tests.cluster.nodes import BROKER, CONTROLLER, ELR, FEATURES, Cluster, Node
from compat_tests.confluent_kafka.clients import producer
from compat_tests.harness.wait import eventually
from compat_tests.interchange.transactions import newest_record
from kwire.records import iterate
from kwire.records.header import headers
from kwire.transaction import records
from kwire.transaction.model import TransactionState
from kwire.types import TRANSACTION_STATE

pytestmark = pytest.mark.with_apache

TOPIC = "decided"
DECISIONS = ("commit", "abort")
"""The transactional ids, each with a partition of its own."""
SETTINGS = {
    "broker.session.timeout.ms": "20000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
NEW_LEVELS = tuple(name for name in FEATURES if name != "transaction")


@pytest.fixture
def cluster(jvm: object, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", SETTINGS)
    cluster.add(1, "kafka", BROKER)
    cluster.add(2, "kafka", BROKER)
    cluster.add(3, "kafka", CONTROLLER)
    cluster.configure()
    yield cluster
    cluster.close()


def state_of(cluster: Cluster, name: str) -> TransactionState:
    _, key, value = newest_record(cluster.nodes[1].address, name)
    record = records.load(key, value)
    assert record is not None
    return TransactionState(record.value.transaction_status)


def state_on_disk(node: Node, name: str) -> TransactionState:
    """Return the state in a stopped node's log; while it runs, Kafka's session would go on."""
    (path,) = node.replica(TRANSACTION_STATE).glob("*.log")
    data = path.read_bytes()
    newest = None
    for pos, header in headers(data):
        for stored in iterate.records(data, pos, header):
            assert stored.key is not None
            if bytes(stored.key).endswith(name.encode()):
                assert stored.value is not None
                newest = records.load(bytes(stored.key), bytes(stored.value))
    assert newest is not None
    return TransactionState(newest.value.transaction_status)


def is_in(cluster: Cluster, name: str, state: TransactionState) -> bool:
    return state_of(cluster, name) is state


def decide_without_markers(cluster: Cluster) -> None:
    """End one transaction each way while no partition can take a marker, and kill all."""
    coordinator, leader, controller = cluster.nodes.values()
    controller.launch()
    coordinator.launch()
    cluster.wait_complete(mixed.START_SECONDS)
    clients: dict[str, Producer] = {}
    for name in DECISIONS:  # The coordinator's topic is made while it is the only broker.
        clients[name] = producer(coordinator.address, transactional_id=name)
        clients[name].init_transactions(60)
    leader.launch()
    cluster.wait_complete(mixed.START_SECONDS)
    mixed.create(cluster, TOPIC, [[leader.id] for _ in DECISIONS])
    for partition, name in enumerate(DECISIONS):
        clients[name].begin_transaction()
        clients[name].produce(TOPIC, name.encode(), partition=partition)
        assert clients[name].flush(60) == 0
    assert leader.process is not None
    leader.process.send_signal(signal.SIGSTOP)
    clients["commit"].commit_transaction(10)
    clients["abort"].abort_transaction(10)
    for node in cluster.nodes.values():
        node.kill()
    assert state_on_disk(coordinator, "commit") is TransactionState.PREPARE_COMMIT
    assert state_on_disk(coordinator, "abort") is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize("features", [FEATURES, NEW_LEVELS], ids=["level-0", "level-2"])
@pytest.mark.parametrize("finisher", ["kafka", "kwire"])
def test_ends_that_kafka_decided_are_finished(
    cluster: Cluster, finisher: str, features: tuple[str, ...]
) -> None:
    """Invariant 59: what was decided is done, once, by whoever opens the directories."""
    for node in cluster.nodes.values():
        run = node.format(features=(*features, ELR))
        assert run.returncode == 0, run.stdout + run.stderr
    decide_without_markers(cluster)
    for node in reversed(cluster.nodes.values()):
        node.kind = finisher
        if finisher == "kafka":  # Where it knows no leader, it completes without the markers.
            cluster.wait_complete(mixed.START_SECONDS)
        node.launch()
    cluster.wait_complete(mixed.START_SECONDS)
    for name, end in (
        ("commit", TransactionState.COMPLETE_COMMIT),
        ("abort", TransactionState.COMPLETE_ABORT),
    ):
        eventually(partial(is_in, cluster, name, end), f"the {name} is complete", 60)
    assert mixed.read(cluster, TOPIC, 0, 1, committed=True) == [b"commit"]
    assert mixed.read(cluster, TOPIC, 1, 0, committed=True) == []
    for partition, name in enumerate(DECISIONS):
        client = producer(cluster.nodes[1].address, transactional_id=name)
        client.init_transactions(60)
        client.begin_transaction()
        client.produce(TOPIC, b"later", partition=partition)
        client.commit_transaction(60)
    assert mixed.read(cluster, TOPIC, 0, 2, committed=True) == [b"commit", b"later"]
    assert mixed.read(cluster, TOPIC, 1, 1, committed=True) == [b"later"]
