"""The garbage collector of a node: new connections must not cause a full collection."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.cli import COLLECTOR


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """Collect with the thresholds of a node; yield a list with an entry per full collection."""
    generations: list[int] = []

    def on_collection(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            generations.append(2)

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*COLLECTOR)
    gc.callbacks.append(on_collection)
    yield generations
    gc.callbacks.remove(on_collection)
    gc.set_threshold(*before)


def test_thousands_of_new_connections_bring_no_full_collection(full_collections: list[int]) -> None:
    objects = [[number] for number in range(300_000)]
    assert len(objects) == 300_000
    assert full_collections == []


def test_full_collection_runs_once_many_objects_live(full_collections: list[int]) -> None:
    objects = []
    while not full_collections:
        objects += [[number] for number in range(10_000)]
        assert len(objects) < 10_000_000
