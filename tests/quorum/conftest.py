"""The worlds in which a scenario runs; `KWIRE_SIM_SEED` is the seed of the simulated ones."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.quorum.cluster import Cluster, Shape
from tests.support.quorum.real import RealCluster
from tests.support.quorum.simulated import SimulatedCluster

WORLDS = [pytest.param(name, marks=pytest.mark.slow) for name in ("memory", "files", "real")]
with_files = pytest.mark.parametrize("make", WORLDS[1:], indirect=True)
"""Marks tests of what happens to files: they do not run in memory."""

SEED = int(os.environ.get("KWIRE_SIM_SEED", "1"))
Make = Callable[..., Cluster]


@pytest.fixture(params=WORLDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a cluster of the world at hand: ``make(others=(4,), fetch_timeout_s=30)``."""
    clusters: list[Cluster] = []

    def build(
        voters: tuple[int, ...] = (1, 2, 3),
        others: tuple[int, ...] = (),
        *,
        is_dynamic: bool = False,
        **settings: Any,
    ) -> Cluster:
        shape = Shape(voters, others, is_dynamic, settings)
        if request.param == "real":
            clusters.append(RealCluster(shape, tmp_path))
        else:
            has_files = request.param == "files"
            clusters.append(SimulatedCluster(shape, files=has_files, seed=SEED))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make: Make) -> Cluster:
    """Three configured voters."""
    return make()
