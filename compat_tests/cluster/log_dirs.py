"""The replicas in the log directories of each node, and their moves between them (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.harness.wait import eventually
from kwire.codec.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import BROKER
from kwire.testing.wire import Closed

LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"
UNLIMITED = 1 << 30
SET = 0


class ReplicaInDirectory(NamedTuple):
    """A replica as DescribeLogDirs names it."""

    partition: int
    directory: Path
    is_future: bool
    size: int


def move(node: Node, topic: str, targets: dict[int, Path]) -> None:
    """Request the moves of a node's replicas, by the number of the partition."""
    shape = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    dirs = [
        shape(
            path=str(target),
            topics=[shape.AlterReplicaLogDirTopic(name=topic, partitions=[index])],
        )
        for index, target in targets.items()
    ]
    with node.client() as client:
        answer = client.call(AlterReplicaLogDirsRequest(dirs=dirs), 2)
    codes = {p.partition_index: p.error_code for topic in answer.results for p in topic.partitions}
    assert codes == dict.fromkeys(targets, 0)


def replicas(node: Node, topic: str, indexes: Iterable[int]) -> list[ReplicaInDirectory]:
    """Return a node's replicas of a topic; the empty list while it does not serve."""
    shape = DescribeLogDirsRequest.DescribableLogDirTopic
    request = DescribeLogDirsRequest(topics=[shape(topic=topic, partitions=list(indexes))])
    try:
        with node.client() as client:
            answer = client.call(request, 4)
    except (OSError, Closed):
        return []
    return sorted(
        ReplicaInDirectory(
            p.partition_index, Path(result.log_dir), p.is_future_key, p.partition_size
        )
        for result in answer.results
        for described in result.topics
        for p in described.partitions
    )


def futures(node: Node, topic: str) -> list[Path]:
    """Return the directories of a node's future replicas of a topic."""
    return [path for parent in node.log_dirs for path in parent.glob(f"{topic}-*-future")]


def limit_moves(cluster: Cluster, bytes_per_second: int) -> None:
    """Set the rate of the moves on every broker, for all of them together, and wait for it."""
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    setting = shape.AlterableConfig(name=LIMIT, config_operation=SET, value=str(bytes_per_second))
    for node in cluster.brokers:
        resource = shape(resource_type=BROKER, resource_name=str(node.id), configs=[setting])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        with node.client() as client:
            (answer,) = client.call(request, 1).responses
        assert answer.error_code == 0, answer.error_message
    for node in cluster.brokers:
        eventually(lambda: limit_at(node) == bytes_per_second, f"the limit of {node.id}")  # noqa: B023


def limit_at(node: Node) -> int | None:
    """Return the rate of the moves that a broker applies; None without one."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node.id), configuration_keys=[LIMIT]
    )
    with node.client() as client:
        (answer,) = client.call(DescribeConfigsRequest(resources=[resource]), 4).results
    values = [config.value for config in answer.configs if config.name == LIMIT]
    return int(values[0]) if values and values[0] is not None else None
