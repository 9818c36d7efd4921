"""The procedures of docs/operations.md, each with real processes, Apache's tools and a load.

The load is one idempotent producer with acks=all that numbers its records.  After each procedure
every acknowledged number is there once and in order, on all replicas (invariants 1, 3, 8 and 12).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.cluster.nodes import BROKER, Cluster, stop_in_order
from compat_tests.cluster.tools import (
    CLUSTER,
    CONFIGS,
    REASSIGN,
    TOPICS,
    add,
    by_broker,
    directory_id,
    remove,
    replication,
)
from compat_tests.cluster.topics import read, segments
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from kwire.types import CONSUMER_OFFSETS

SETTINGS = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_replication_factor": "3",
    "broker_session_timeout_ms": "3000",
    "broker_heartbeat_interval_ms": "500",
    "controller_quorum_fetch_timeout_ms": "4000",
}
PACE_S = 0.002


@attrs.define(eq=False)
class Load:
    """A producer that goes on through a procedure, and the numbers that were acknowledged."""

    bootstrap: str
    topic: str
    acknowledged: list[int] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    _end: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "linger.ms": 2,
            }
        )
        number = 0
        while not self._end.wait(PACE_S):
            producer.produce(self.topic, b"%d" % number, partition=0, on_delivery=self._on_delivery)
            producer.poll(0)
            number += 1
        producer.flush(120)

    def _on_delivery(self, error: object, message) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.errors.append(str(error))

    def wait_more(self, count: int = 100) -> None:
        """Wait until more records are acknowledged: the cluster takes them at this stage."""
        target = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= target, f"more records: {self.errors}", 120)

    def end(self) -> None:
        self._end.set()


@contextmanager
def load(cluster: Cluster, topic: str) -> Iterator[Load]:
    """Produce during the context; check at its end that nothing failed."""
    running = Load(cluster.bootstrap, topic)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        running.wait_more()
        yield running
        running.wait_more()
    finally:
        running.end()
        thread.join()
    assert running.errors == []


def check_nothing_is_lost(cluster: Cluster, running: Load) -> None:
    assert running.acknowledged == list(range(len(running.acknowledged)))
    assert read(cluster, running.topic, len(running.acknowledged)) == running.acknowledged


def create(jvm, cluster: Cluster, topic: str) -> None:
    jvm.tool(TOPICS, *by_broker(cluster), "--create", "--topic", topic, "--partitions", "1").ok()
    wait_all_in_sync(jvm, cluster)


def under_replicated(jvm, cluster: Cluster) -> str:
    ran = jvm.tool(TOPICS, *by_broker(cluster), "--describe", "--under-replicated-partitions")
    return ran.out.strip() if ran.code == 0 else f"{ran.out}{ran.err}"


def wait_all_in_sync(jvm, cluster: Cluster) -> None:
    """Wait as an operator does before the next step: no partition is under-replicated."""
    eventually(
        lambda: under_replicated(jvm, cluster) == "",
        lambda: f"all replicas in sync: {cluster.tails()}",
    )


def replicas(jvm, cluster: Cluster, topic: str) -> set[str]:
    """Return the replicas of each partition of a topic, as the tool prints them."""
    lines = jvm.tool(TOPICS, *by_broker(cluster), "--describe", "--topic", topic).ok().splitlines()
    rows = [line for line in lines if "Partition: " in line]
    return {row.partition("Replicas: ")[2].partition("\t")[0] for row in rows}


def reassign(
    jvm: Jvm, cluster: Cluster, folder: Path, moves: dict[tuple[str, int], list[int]]
) -> None:
    """Move partitions with kafka-reassign-partitions, and wait until it calls them complete."""
    plan = folder / "moves.json"
    listed = [
        {"topic": topic, "partition": index, "replicas": nodes}
        for (topic, index), nodes in moves.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": listed}))
    arguments = (*by_broker(cluster), "--reassignment-json-file", str(plan))
    jvm.tool(REASSIGN, *arguments, "--execute").ok()

    def is_complete() -> bool:
        output = jvm.tool(REASSIGN, *arguments, "--verify").ok()
        return output.count("is completed") == len(moves)

    eventually(is_complete, lambda: f"the moves complete: {cluster.tails()}")


def commit(cluster: Cluster, topic: str, offset: int) -> None:
    """Commit an offset as the group ``keeper``; its coordinator may still have to start."""
    consumer = keeper(cluster)

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
            return False
        return True

    try:
        eventually(is_committed, lambda: f"a commit: {cluster.tails()}")
    finally:
        consumer.close()


def committed_offset(cluster: Cluster, topic: str) -> int:
    consumer = keeper(cluster)
    try:
        (position,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
    finally:
        consumer.close()
    offset: int = position.offset
    return offset


def keeper(cluster: Cluster) -> Consumer:
    bootstrap = ",".join(node.address for node in cluster.living)
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "keeper"})


@pytest.fixture
def three(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, dynamic=True, **SETTINGS)
    cluster.start_with_initial_controllers()
    return cluster


def test_cluster_of_three_machines_survives_the_loss_of_one(jvm, three: Cluster) -> None:
    create(jvm, three, "orders")
    assert set(replication(jvm, three).values()) == {"Leader", "Follower"}
    with load(three, "orders") as running:
        three.nodes[1].kill()
        running.wait_more()
    check_nothing_is_lost(three, running)


def test_rolling_restart_under_load_loses_nothing(jvm, three: Cluster) -> None:
    """Invariants 37 and 108: leaders move before their broker stops, and no send fails."""
    create(jvm, three, "orders")
    with load(three, "orders") as running:
        for node in three.brokers:
            stop_in_order(node)
            running.wait_more()
            node.launch()
            three.wait_complete()
            wait_all_in_sync(jvm, three)
            running.wait_more()
    check_nothing_is_lost(three, running)
    eventually(lambda: len({segments(n, "orders") for n in three.brokers}) == 1, "equal replicas")


def test_dead_machine_is_replaced(jvm, three: Cluster) -> None:
    """Invariant 45: the new disk gets a new directory id, so it cannot vote as the lost one."""
    create(jvm, three, "orders")
    dead = three.nodes[3]
    lost = directory_id(dead)
    with load(three, "orders") as running:
        dead.kill()
        shutil.rmtree(dead.directory / "data")
        running.wait_more()
        remove(jvm, by_broker(three), dead.id, lost).ok()
        dead.prepare("--no-initial-controllers")
        dead.launch()
        three.wait_complete()
        wait_all_in_sync(jvm, three)
        add(jvm, by_broker(three), dead).ok()
    assert set(replication(jvm, three).values()) == {"Leader", "Follower"}
    eventually(lambda: len({segments(n, "orders") for n in three.brokers}) == 1, "equal replicas")
    three.nodes[1].kill()
    check_nothing_is_lost(three, running)


def test_one_node_becomes_three_without_losing_data(
    jvm, make: Callable[..., Cluster], broker_kind: str, tmp_path: Path
) -> None:
    cluster = make(1, dynamic=True, **{**SETTINGS, "default_replication_factor": "1"})
    cluster.overrides = {
        **cluster.overrides,
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
    }
    cluster.start_standalone()
    create(jvm, cluster, "orders")
    with load(cluster, "orders") as running:
        commit(cluster, "orders", 50)
        for node_id in (2, 3):
            node = cluster.add(node_id, broker_kind)
            cluster.configure()
            node.prepare("--no-initial-controllers")
            node.launch()
            cluster.wait_complete()
            add(jvm, by_broker(cluster), node).ok()
        moves = {("orders", 0): [1, 2, 3]}
        moves |= {(CONSUMER_OFFSETS, index): [1, 2, 3] for index in range(3)}
        reassign(jvm, cluster, tmp_path, moves)
        wait_all_in_sync(jvm, cluster)
        default = ("--entity-type", "brokers", "--entity-default")
        how = by_broker(cluster)
        change = ("--add-config", "min.insync.replicas=2")
        jvm.tool(CONFIGS, *how, "--alter", *default, *change).ok()
        running.wait_more()
    assert set(replication(jvm, cluster).values()) == {"Leader", "Follower"}
    cluster.nodes[1].kill()
    check_nothing_is_lost(cluster, running)
    assert committed_offset(cluster, "orders") == 50


def test_broker_is_added_and_drained(jvm, three: Cluster, broker_kind: str, tmp_path: Path) -> None:
    """Invariant 36: no data leaves a broker before its successors are in sync."""
    create(jvm, three, "orders")
    with load(three, "orders") as running:
        fourth = three.add(4, broker_kind, BROKER)
        three.configure()
        fourth.prepare("--no-initial-controllers")
        fourth.launch()
        three.wait_complete()
        reassign(jvm, three, tmp_path, {("orders", 0): [4, 2, 3]})
        eventually(lambda: replicas(jvm, three, "orders") == {"4,2,3"}, "known to the brokers")
        wait_all_in_sync(jvm, three)
        eventually(lambda: not three.nodes[1].replica("orders").exists(), "1 is rid of it")
        running.wait_more()
        reassign(jvm, three, tmp_path, {("orders", 0): [1, 2, 3]})
        eventually(
            lambda: not fourth.replica("orders").exists(),
            "broker 4 has deleted its replica",
        )
        stop_in_order(fourth)
        jvm.tool(CLUSTER, "unregister", *by_broker(three), "--id", "4").ok()
        three.wait_complete()
        wait_all_in_sync(jvm, three)
    eventually(lambda: replicas(jvm, three, "orders") == {"1,2,3"}, "known to the brokers")
    check_nothing_is_lost(three, running)
