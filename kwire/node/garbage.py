"""Keeps the pauses of Python's garbage collector short, however many objects a node has.

A full collection visits every object that it knows, about 4,000 in a millisecond: one took 100 ms
with 10,000 partitions, and any request that made enough objects could start it. A node's objects
stay for long, and few of them are in cycles. So the rules are:

* What has survived a full collection is frozen: later collections do not visit it. A full
  collection then visits only what was made since the last one (:data:`kwire.cli.COLLECTOR`).
* A cycle that is frozen and then dropped stays in memory until all objects are visited again. That
  is a long pause, so it happens only when the memory blocks of the process have about doubled, and
  grown by at least :data:`MIN_GROWTH_BLOCKS`. That limits the memory which such cycles can take.
* Connections, of which there may be many in a second, leave no cycles behind
  (``kwire/net/readiness.py``).
"""

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Final

from kwire import attrs

OLDEST: Final = 2
"""The generation of full collections."""
MIN_GROWTH_BLOCKS: Final = 2_000_000
"""About 200 MB, or 20,000 partitions."""


@attrs.define(eq=False)
class Collector:
    """Freezes what survives full collections; :meth:`on_collection` belongs in ``gc.callbacks``."""

    call_soon: Callable[[Callable[[], object]], object]
    """Calls a function outside of the collection that is going on, in the main thread."""
    count_blocks: Callable[[], int] = sys.getallocatedblocks
    """Counts the memory blocks that Python has allocated: 0.3 ms for 1.5 million."""
    _limit_blocks: int = attrs.field(init=False)
    _is_called: bool = False
    """Whether :meth:`collect_all` is to be called."""

    def __attrs_post_init__(self) -> None:
        self._set_limit()

    def on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Freeze the survivors of a full collection; has the signature of ``gc.callbacks``."""
        if phase != "stop" or info["generation"] != OLDEST:
            return
        gc.freeze()
        if not self._is_called and self.count_blocks() > self._limit_blocks:
            self._is_called = True
            self.call_soon(self.collect_all)

    def collect_all(self) -> None:
        """Collect among all objects, frozen ones too."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python postpones the next full collection until a quarter of what the last one left is
        # new. This one has nothing to visit and leaves nothing.
        gc.collect()
        self._set_limit()
        self._is_called = False

    def _set_limit(self) -> None:
        blocks = self.count_blocks()
        self._limit_blocks = blocks + max(blocks, MIN_GROWTH_BLOCKS)
