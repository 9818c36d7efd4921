"""The image of this tree, built once for all tests, and podman for one test at a time.

The workers of a parallel run share podman's storage, the network and the cache, so a test holds a
lock, and removes every container at its end.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat_tests.containers.podman import (
    Podman,
    build_image,
    open_podman,
    reason_to_skip,
    serving,
)


@contextmanager
def hold_lock(podman: Podman) -> Iterator[None]:
    """Keep the other workers away for the length of the block."""
    with (podman.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def with_image(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """Podman with the image, which the first worker builds."""
    if broker_kind != "kwire":
        pytest.skip("tests the image of kwire")
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    podman = open_podman()
    of_all_workers = of_the_run(tmp_path_factory.getbasetemp()) / "image"
    with hold_lock(podman):
        if not of_all_workers.exists():
            build_image(podman, tmp_path_factory.mktemp("build"))
            podman("image", "prune", "--force")
            of_all_workers.touch()
    return podman


def of_the_run(folder: Path) -> Path:
    """Return the temporary folder that all workers of the run share."""
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def podman(with_image: Podman) -> Iterator[Podman]:
    """Podman for this test alone."""
    with hold_lock(with_image):
        yield with_image
        with_image("rm", "--all", "--force", "--volumes")


@pytest.fixture
def docker(podman: Podman) -> Iterator[Mapping[str, str]]:
    """The environment of a program that uses Docker."""
    with serving(podman) as environment:
        yield environment
