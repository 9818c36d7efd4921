"""The garbage collector of a node: it must not hold everything up while connections come."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.cli import COLLECTOR


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """Generations that were collected wholly, with the thresholds of a node."""
    seen: list[int] = []

    def collected(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(2)

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*COLLECTOR)
    gc.callbacks.append(collected)
    yield seen
    gc.callbacks.remove(collected)
    gc.set_threshold(*before)


def test_thousands_of_new_connections_bring_no_full_collection(full_collections: list[int]) -> None:
    kept = [[number] for number in range(300_000)]
    assert len(kept) == 300_000
    assert full_collections == []


def test_what_stays_for_ever_is_collected_at_last(full_collections: list[int]) -> None:
    kept = []
    while not full_collections:
        kept += [[number] for number in range(10_000)]
        assert len(kept) < 10_000_000
