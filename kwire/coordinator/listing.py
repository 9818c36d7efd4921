"""Reads from all partitions that this node leads as their coordinator."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kwire.coordinator.decision import Machine
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices
from kwire.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator

M = TypeVar("M", bound=Machine)
R = TypeVar("R")


async def read_each(runtime: CoordinatorRuntime[M], look: Callable[[M], R]) -> list[R]:
    """Return the result of ``look`` for each partition that this node leads.

    Raises CoordinatorLoadInProgress while a partition is loading, or CoordinatorNotAvailable if the
    lease is over.
    """
    if runtime.loading:
        raise CoordinatorLoadInProgress
    results: list[R] = []
    slices = Slices()
    for index in runtime.active:
        with suppress(NotCoordinator):  # The partition's new leader lists it.
            results.append(await runtime.read(index, look))
        await slices.pause()
    if runtime.log.is_lease_over:
        raise CoordinatorNotAvailable
    return results
