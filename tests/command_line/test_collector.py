"""The garbage collector of a node: its pauses stay short, however many objects there are."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import ref

import attrs
import pytest

from kwire.cli import COLLECTOR
from kwire.net.acceptor import COLLECTED
from kwire.node.garbage import MIN_GROWTH_BLOCKS, Collector, collect_new

VISITED_MAX: Final = 10_000
"""The most objects that a collection may visit: 3 ms."""


@attrs.define
class Ring:
    """An object that may refer to itself."""

    itself: "Ring | None" = None


@attrs.define
class NodeCollector:
    """A collector like that of a node, and what its collections visit."""

    calls: list[Callable[[], object]] = attrs.field(factory=list)
    blocks: int = 0
    visited: list[int] = attrs.field(factory=list)
    """The number of objects that each collection but those of the youngest has visited."""

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] > 0:
            self.visited.append(len(gc.get_objects()))

    def count_blocks(self) -> int:
        return self.blocks


@pytest.fixture
def node() -> Iterator[NodeCollector]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(*COLLECTOR)
    node = NodeCollector()
    collector = Collector(node.calls.append, node.count_blocks)
    callbacks = [node.on_collection, collector.on_collection]
    gc.callbacks.extend(callbacks)
    yield node
    for callback in callbacks:
        gc.callbacks.remove(callback)
    gc.set_threshold(*before)
    gc.unfreeze()


def dropped_ring() -> ref[Ring]:
    """Return a reference to garbage that was in use during a full collection."""
    ring = Ring()
    ring.itself = ring
    gc.collect()
    return ref(ring)


def test_collection_visits_only_new_objects_while_a_node_grows(node: NodeCollector) -> None:
    objects = [[number] for number in range(300_000)]
    assert len(objects) == 300_000
    assert len(node.visited) > 3
    assert max(node.visited) < VISITED_MAX


def test_collection_visits_few_objects_while_connections_come_and_go(node: NodeCollector) -> None:
    """Python counts the objects that are created less those that are freed: here, none."""
    connections: deque[list[list[int]]] = deque(maxlen=2048)
    for number in range(3 * 2048):
        connections.append([[number] for _ in range(60)])
        if number % COLLECTED == 0:
            collect_new()
    gc.collect()
    assert max(node.visited) < VISITED_MAX


def test_memory_in_cycles_is_freed_once_a_node_has_grown(node: NodeCollector) -> None:
    ring = dropped_ring()
    node.blocks = MIN_GROWTH_BLOCKS
    gc.collect()
    assert node.calls == []
    assert ring() is not None
    node.blocks = MIN_GROWTH_BLOCKS + 1
    gc.collect()
    (collect_all,) = node.calls
    collect_all()
    assert ring() is None


def test_all_objects_are_visited_once_for_one_growth(node: NodeCollector) -> None:
    """The collection that visits all makes a node wait."""
    node.blocks = 3 * MIN_GROWTH_BLOCKS
    gc.collect()
    gc.collect()
    (collect_all,) = node.calls
    collect_all()
    node.blocks *= 2
    gc.collect()
    assert len(node.calls) == 1
    node.blocks += 1
    gc.collect()
    assert len(node.calls) == 2


def test_collections_stay_small_after_one_of_all_objects(node: NodeCollector) -> None:
    objects = [[number] for number in range(300_000)]
    node.blocks = MIN_GROWTH_BLOCKS + 1
    gc.collect()
    node.calls[0]()
    node.visited.clear()
    objects += [[number] for number in range(300_000)]
    assert len(node.visited) > 3
    assert max(node.visited) < VISITED_MAX
