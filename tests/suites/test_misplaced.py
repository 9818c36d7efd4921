"""The nemesis finds copies that are missing, left behind or in two directories (invariant 36)."""

from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.durability.observations import View
from compat_tests.nemesis.replicas import find_misplaced_copies

FIRST, SECOND = 1, 2
REPLICAS = frozenset({FIRST})
VIEWS = {node_id: {("t", 0): View(FIRST, 0, REPLICAS, REPLICAS)} for node_id in (FIRST, SECOND)}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    for node_id in (FIRST, SECOND):
        cluster.add(node_id)
    return cluster


def put(cluster: Cluster, node_id: int, *names: str) -> None:
    """Create directories of partitions on a node."""
    for name in names:
        folder = cluster.nodes[node_id].directory / "data" / name
        folder.mkdir(parents=True)
        (folder / "partition.metadata").touch()


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (["t-0"], [], 0),
        (["t-0", "__cluster_metadata-0"], [], 0),
        ([], [], 1),
        (["t-0"], ["t-0"], 1),  # A former replica is left behind.
        (["0/t-0", "1/t-0"], [], 1),
        (["t-0"], ["t-0.8a44d1-delete"], 1),  # It is not deleted yet.
        (["0/t-0", "1/t-0.8a44d1-future"], [], 1),
    ],
)
def test_nodes_have_the_copies_that_the_metadata_name(
    cluster: Cluster, first: list[str], second: list[str], count: int
) -> None:
    put(cluster, FIRST, *first)
    put(cluster, SECOND, *second)
    assert len(find_misplaced_copies(cluster, VIEWS)) == count
