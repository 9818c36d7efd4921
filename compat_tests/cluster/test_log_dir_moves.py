"""Replicas that move between log directories: on all nodes at once, and across a change of kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.cluster import mixed
from compat_tests.cluster.log_dirs import UNLIMITED, futures, limit_moves, move, replicas
from compat_tests.cluster.mixed import (
    CLIENT_SECONDS,
    PARTITIONS,
    START_SECONDS,
    IdempotentLoad,
    read,
    running,
    wait_equal,
)
from compat_tests.cluster.nodes import Cluster, Node, stop_in_order
from compat_tests.cluster.topics import NODES, create_on, leader_of, wait_isr
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from kwire.codec.messages.elect_leaders import ElectLeadersRequest

LOG_DIRS = ("data", "data-b")
TOPIC = "moved"
SETTINGS = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "broker_session_timeout_ms": "9000",
    "broker_heartbeat_interval_ms": "500",
    "log_segment_bytes": str(1 << 20),
    "log_segment_delete_delay_ms": "1000",
}
SLOW = 20_000
"""A rate in bytes per second at which no move ends while the producer runs."""
VALUE_BYTES = 2000
INDEXES = range(PARTITIONS)
MANY, LARGE = 50, 100_000
"""The number and size of the records that a throttled move copies for minutes."""


def swap_directories(node: Node) -> dict[int, Path]:
    """Request that each replica of a node move to the other directory; return the targets."""
    first, second = node.log_dirs
    current = {r.partition: r.directory for r in replicas(node, TOPIC, INDEXES) if not r.is_future}
    targets = {index: first if path == second else second for index, path in current.items()}
    assert len(targets) == PARTITIONS
    move(node, TOPIC, targets)
    return targets


def is_moved(node: Node, targets: dict[int, Path]) -> bool:
    """Return whether each replica is in its target, and no other directory has it."""
    described = [(r.partition, r.directory) for r in replicas(node, TOPIC, INDEXES)]
    names = [path for parent in node.log_dirs for path in parent.glob(f"{TOPIC}-*")]
    expected = sorted(path / f"{TOPIC}-{index}" for index, path in targets.items())
    return described == sorted(targets.items()) and sorted(names) == expected


def wait_moved(cluster: Cluster, targets: dict[int, dict[int, Path]]) -> None:
    for node in cluster.brokers:
        eventually(
            lambda: is_moved(node, targets[node.id]),  # noqa: B023
            lambda: f"{node.id}: {replicas(node, TOPIC, INDEXES)}: {cluster.tails()}",  # noqa: B023
            CLIENT_SECONDS,
        )


def elect_preferred(cluster: Cluster) -> None:
    """Let each node lead one partition, as when the topic was created."""
    with cluster.living[0].client() as client:
        answer = client.call(ElectLeadersRequest(topic_partitions=None, timeout_ms=30_000), 2)
    assert answer.error_code == 0
    eventually(
        lambda: [leader_of(cluster, TOPIC, index) for index in INDEXES] == list(NODES),
        lambda: f"preferred leaders: {cluster.tails()}",
    )


def wait_in_sync(cluster: Cluster) -> None:
    cluster.wait_complete(START_SECONDS)
    for index in INDEXES:
        wait_isr(cluster, TOPIC, NODES, index, CLIENT_SECONDS)


@pytest.mark.long
def test_replicas_move_on_all_nodes_while_leaders_change(make: Callable[..., Cluster]) -> None:
    """All replicas move, none differs, no acknowledged record is lost (invariants 1, 3, 23)."""
    cluster = make(3, log_dirs=LOG_DIRS, **SETTINGS)
    cluster.start()
    create_on(cluster, TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)])
    load = IdempotentLoad(cluster, TOPIC, cluster.bootstrap, value_bytes=VALUE_BYTES)
    with running(load):
        load.wait_more(1000)
        limit_moves(cluster, SLOW)
        targets = {node.id: swap_directories(node) for node in cluster.brokers}
        for node in cluster.brokers:
            eventually(lambda: len(futures(node, TOPIC)) == PARTITIONS, "future replicas")  # noqa: B023
        stop_in_order(cluster.nodes[1])
        load.wait_more(100)
        cluster.nodes[1].launch()
        wait_in_sync(cluster)
        cluster.nodes[2].kill()
        load.wait_more(100)
        cluster.nodes[2].launch()
        wait_in_sync(cluster)
        for node in cluster.brokers:
            assert len(futures(node, TOPIC)) == PARTITIONS, "a restart keeps the future replicas"
        limit_moves(cluster, UNLIMITED)
        elect_preferred(cluster)
        wait_moved(cluster, targets)
        back = {node.id: swap_directories(node) for node in cluster.brokers}
        stop_in_order(cluster.nodes[3])
        load.wait_more(100)
        cluster.nodes[3].launch()
        wait_in_sync(cluster)
        elect_preferred(cluster)
        wait_moved(cluster, back)
    load.check()
    for index in INDEXES:
        wait_equal(cluster, TOPIC, index)
    wait_moved(cluster, back)


@pytest.fixture(params=["kwire", pytest.param("kafka", marks=pytest.mark.long)])
def single(request, jvm: Jvm, tmp_path: Path) -> Iterator[Cluster]:
    """A node of either kind, formatted by Apache Kafka, with two log directories."""
    overrides = {name.replace("_", "."): value for name, value in SETTINGS.items()}
    overrides |= {"min.insync.replicas": "1", "default.replication.factor": "1"}
    cluster = Cluster(tmp_path / "cluster", overrides, log_dirs=LOG_DIRS)
    node = cluster.add(1, request.param)
    cluster.configure()
    mixed.format_by_apache(jvm, cluster, node)
    node.launch()
    cluster.wait_complete(START_SECONDS)
    yield cluster
    cluster.close()


def fill(cluster: Cluster, numbers: range) -> None:
    client = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    errors: list[object] = []
    for number in numbers:
        value = (b"%d" % number).ljust(LARGE)
        client.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert client.flush(CLIENT_SECONDS) == 0  # One record a batch.
    assert errors == [None] * len(numbers)


@pytest.mark.with_apache
def test_other_kind_finishes_a_move_that_a_kill_has_interrupted(single: Cluster) -> None:
    """It opens the current and the future replica, and loses nothing (invariant 83)."""
    cluster, node = single, single.nodes[1]
    create_on(cluster, TOPIC, [(1,)])
    fill(cluster, range(MANY))
    ((_, source, _, size),) = replicas(node, TOPIC, [0])
    (target,) = {*node.log_dirs} - {source}
    limit_moves(cluster, LARGE)
    move(node, TOPIC, {0: target})

    def future_size() -> int:
        return sum(r.size for r in replicas(node, TOPIC, [0]) if r.is_future)

    before = eventually(future_size, lambda: f"a first slice: {cluster.tails()}")
    assert before < size
    node.kill()
    assert [path.parent for path in futures(node, TOPIC)] == [target]
    node.kind = "kafka" if node.kind == "kwire" else "kwire"
    node.launch()
    cluster.wait_complete(START_SECONDS)
    eventually(future_size, lambda: f"the move goes on: {cluster.tails()}", START_SECONDS)
    fill(cluster, range(MANY, MANY + 10))
    limit_moves(cluster, UNLIMITED)
    eventually(
        lambda: is_moved(node, {0: target}),
        lambda: f"{replicas(node, TOPIC, [0])}: {cluster.tails()}",
        CLIENT_SECONDS,
    )
    expected = list(range(MANY + 10))
    assert [int(value) for value in read(cluster, TOPIC, 0, len(expected))] == expected
