"""A log directory that fails while its node leads partitions in it, and then the last one.

The directory is moved away and a file takes its place, so that the next checkpoint or segment in it
fails. The metadata log has a directory of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.cluster.topics import create, describe, leader_of, producer, read
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually

SETTINGS = {
    "offsets_topic_replication_factor": "3",
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "auto_leader_rebalance_enable": "false",
    "replica_high_watermark_checkpoint_interval_ms": "500",
    "log_flush_offset_checkpoint_interval_ms": "500",
    "log_flush_start_offset_checkpoint_interval_ms": "500",
}
PARTITIONS = 6
DIRECTORIES = ("data-a", "data-b")


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    """Start three nodes, each with two log directories."""
    cluster = make(3, **SETTINGS)
    for node in cluster.nodes.values():
        properties = cluster.properties(node)
        properties["log.dirs"] = ",".join(str(node.directory / name) for name in DIRECTORIES)
        properties["metadata.log.dir"] = str(node.directory / "metadata")
        kafka.write_properties(node.config, properties)
    cluster.start()
    return cluster


def partitions_in(directory: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in directory.glob("t-*") if path.is_dir()}


def fail(directory: Path) -> None:
    directory.rename(directory.with_name(f"{directory.name}-moved"))
    directory.write_text("")


@contextmanager
def load(cluster: Cluster) -> Iterator[dict[int, list[int]]]:
    """Produce to all partitions in the background; yield what was acknowledged, by partition."""
    acknowledged: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
    errors: list[str] = []
    ends = threading.Event()

    def on_delivery(error: object, message) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged[message.partition()].append(int(message.value()))

    def work() -> None:
        client = producer(cluster)
        number = 0
        while not ends.wait(0.005):
            for index in range(PARTITIONS):
                client.produce("t", b"%d" % number, partition=index, on_delivery=on_delivery)
            client.poll(0)
            number += 1
        assert client.flush(90) == 0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield acknowledged
    finally:
        ends.set()
        thread.join(120)
    assert not errors


@pytest.mark.long
def test_leaders_leave_a_failed_directory_and_the_last_one_ends_its_node(cluster: Cluster) -> None:
    """Invariants 1, 3 and 89: nothing acknowledged is lost, and the node serves its other one."""
    create(cluster, "t", partitions=PARTITIONS)
    node = cluster.nodes[leader_of(cluster, "t", 0)]

    def has_all_logs() -> bool:
        return sum(len(partitions_in(node.directory / n)) for n in DIRECTORIES) == PARTITIONS

    eventually(has_all_logs, lambda: f"logs: {cluster.tails()}", 60)
    partitions = {name: partitions_in(node.directory / name) for name in DIRECTORIES}
    first = next(name for name in DIRECTORIES if 0 in partitions[name])
    last = next(name for name in DIRECTORIES if name != first)
    assert partitions[last], partitions
    with load(cluster) as acknowledged:
        eventually(lambda: all(acknowledged.values()), lambda: f"records: {cluster.tails()}", 60)
        fail(node.directory / first)

        def has_left() -> bool:
            states = [describe(cluster, "t", index) for index in partitions[first]]
            return all(s and s.leader_id not in (-1, node.id) for s in states) and all(
                node.id not in s.isr_nodes for s in states if s
            )

        eventually(has_left, lambda: f"leaders elsewhere: {cluster.tails()}", 90)
        counts = {index: len(acknowledged[index]) for index in range(PARTITIONS)}
        eventually(
            lambda: all(len(acknowledged[index]) > counts[index] for index in counts),
            lambda: f"records after the failure: {cluster.tails()}",
            90,
        )
        assert node.alive
        assert all(node.id in describe(cluster, "t", n).isr_nodes for n in partitions[last])
        fail(node.directory / last)
        eventually(lambda: not node.alive, lambda: f"the node ends: {cluster.tails()}", 90)
        eventually(
            lambda: all(leader_of(cluster, "t", n) not in (-1, node.id) for n in range(PARTITIONS)),
            lambda: f"leaders elsewhere: {cluster.tails()}",
            90,
        )
    assert node.process is not None
    assert node.process.returncode != 0
    for index, expected in acknowledged.items():
        assert read(cluster, "t", len(expected), index) == expected
