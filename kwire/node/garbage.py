"""Keeps the pauses of Python's garbage collector short, however many objects a node has.

A full collection visits every tracked object, about 4,000 per millisecond. With 10,000 partitions
one collection took 100 ms, and any request that created enough objects could trigger it. A node's
objects are long-lived, and few of them are in cycles. So the rules are:

* Objects that survive any collection of an older generation than the youngest are frozen: later
  collections do not visit them. So each collection visits only objects created since the last such
  collection (:data:`kwire.cli.COLLECTOR`). Python starts a collection by the number of objects
  created minus those freed: while thousands of connections come and go, collections would be rare,
  and each would visit all of these connections (40 ms). So :func:`collect_new` runs after every few
  connections.
* A frozen cycle that becomes unreachable stays in memory until a collection visits all objects.
  This collection is a long pause, so it runs only when the memory blocks of the process have about
  doubled and grown by at least :data:`MIN_GROWTH_BLOCKS`, which bounds the memory of such cycles.
* Connections, which may come and go many times per second, leave no cycles behind
  (``kwire/net/readiness.py``).
"""

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Final

import attrs

YOUNGEST: Final = 0
"""The garbage collector's generation of the objects that no collection has visited."""
_MIDDLE: Final = 1
MIN_GROWTH_BLOCKS: Final = 2_000_000
"""About 200 MB, or 20,000 partitions."""


def collect_new() -> None:
    """Collect the objects created since the last collection, except the youngest."""
    gc.collect(_MIDDLE)


@attrs.define(eq=False, repr=False)
class Collector:
    """Freezes objects that survive collections; add :meth:`on_collection` to ``gc.callbacks``."""

    call_soon: Callable[[Callable[[], object]], object]
    """Schedules a call in the main thread, after the current collection."""
    count_blocks: Callable[[], int] = sys.getallocatedblocks
    """Counts the memory blocks that Python has allocated: 0.3 ms for 1.5 million."""
    _limit_blocks: int = attrs.field(init=False)
    _is_called: bool = False
    """True while a call of :meth:`collect_all` is scheduled."""

    def __attrs_post_init__(self) -> None:
        self._set_limit()

    def on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Freeze the survivors of a collection, unless it was one of the youngest generation."""
        if phase != "stop" or info["generation"] == YOUNGEST:
            return
        gc.freeze()
        if not self._is_called and self.count_blocks() > self._limit_blocks:
            self._is_called = True
            self.call_soon(self.collect_all)

    def collect_all(self) -> None:
        """Run a collection that visits all objects, including frozen ones."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._set_limit()
        self._is_called = False

    def _set_limit(self) -> None:
        blocks = self.count_blocks()
        self._limit_blocks = blocks + max(blocks, MIN_GROWTH_BLOCKS)
