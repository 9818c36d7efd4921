"""Reassignments of partitions: their requests, Apache's tool for them, and their end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.tools import REASSIGN, by_broker
from compat_tests.cluster.topics import describe_at
from compat_tests.harness.jvm import Jvm, Ran
from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kwire.testing.wire import Closed


def reassign(cluster: Cluster, topic: str, brokers: Sequence[int] | None, index: int = 0) -> int:
    """Begin a reassignment, or cancel it with None; return the partition's error code."""
    shape = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = shape.ReassignablePartition(
        partition_index=index, replicas=None if brokers is None else list(brokers)
    )
    request = AlterPartitionReassignmentsRequest(
        topics=[shape(name=topic, partitions=[partition])], timeout_ms=30_000
    )
    with cluster.living[0].client() as client:
        response = client.call(request, 0)
    assert response.error_code == 0, response.error_message
    return response.responses[0].partitions[0].error_code


def reassignments(cluster: Cluster) -> dict[tuple[str, int], tuple[set[int], set[int]]]:
    """Return the replicas that each reassignment adds and removes."""
    with cluster.living[0].client() as client:
        response = client.call(ListPartitionReassignmentsRequest(topics=None), 0)
    return {
        (topic.name, p.partition_index): (set(p.adding_replicas), set(p.removing_replicas))
        for topic in response.topics
        for p in topic.partitions
    }


def is_moved(cluster: Cluster, topic: str, *brokers: int) -> bool:
    """Whether partition 0 has exactly these replicas, all in sync, and no reassignment goes on.

    Every living broker must know it, because a tool may ask any of them.
    """

    def is_moved_at(node: Node) -> bool:
        try:
            partition = describe_at(node, topic)
        except (OSError, Closed):
            return False
        return (
            partition is not None
            and list(partition.replica_nodes) == list(brokers)
            and set(partition.isr_nodes) == set(brokers)
            and partition.leader_id in brokers
        )

    return all(is_moved_at(node) for node in cluster.living) and not reassignments(cluster)


def directories(node: Node, topic: str, index: int = 0) -> list[str]:
    """Return the directories of a partition on a node, also those marked for deletion."""
    names = os.listdir(node.directory / "data")
    return [name for name in names if name == f"{topic}-{index}" or f"{topic}-{index}." in name]


def wait_moved(
    cluster: Cluster, topic: str, *brokers: int, seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait for the end of a reassignment to these brokers."""
    eventually(
        lambda: is_moved(cluster, topic, *brokers),
        lambda: f"{topic} on {brokers}: {cluster.tails()}",
        seconds,
    )


def wait_deleted(node: Node, topic: str) -> None:
    """Wait until a node has no directory of a topic's first partition."""
    eventually(
        lambda: not directories(node, topic),
        lambda: f"{topic} is deleted on {node.id}: {node.read_log()[-2000:]}",
    )


class Plan:
    """Apache's reassignment tool with one plan."""

    def __init__(self, jvm: Jvm, cluster: Cluster, path: Path, topic: str, *brokers: int) -> None:
        self.jvm, self.cluster, self.path = jvm, cluster, path
        moves = [{"topic": topic, "partition": 0, "replicas": list(brokers)}]
        path.write_text(json.dumps({"version": 1, "partitions": moves}))

    def run(self, *arguments: str) -> Ran:
        plan = ("--reassignment-json-file", str(self.path))
        return self.jvm.tool(REASSIGN, *by_broker(self.cluster), *plan, *arguments)
