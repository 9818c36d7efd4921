"""Fixtures of clusters that are closed at the end of their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster


@pytest.fixture
def make(tmp_path: Path, broker_kind: str) -> Iterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def cluster(
        count: int,
        *,
        dynamic: bool = False,
        log_dirs: tuple[str, ...] = ("data",),
        **overrides: str,
    ) -> Cluster:
        """Make nodes 1 to ``count`` of the kind under test, not started.

        ``overrides`` are settings, with underscores instead of dots.
        """
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        new = Cluster(tmp_path / f"cluster-{len(clusters)}", named, dynamic, log_dirs)
        clusters.append(new)
        for node_id in range(1, count + 1):
            new.add(node_id, broker_kind)
        return new

    yield cluster
    for new in clusters:
        new.close()
