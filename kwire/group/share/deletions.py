"""Tracks groups whose share state is being deleted, so that no initialization overtakes that.

A member may join while the request to delete its group's state is on its way to the persister. If
the state were initialized before the deletion arrived, the deletion would remove the new state, and
the partitions would stay unreadable, because the group considers them initialized.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from kwire.waits import Signal


@attrs.define(eq=False, repr=False)
class Deletions:
    """The deletions in progress on this node, by group."""

    _counts: Counter[str] = attrs.field(factory=Counter, init=False)
    _ended: Signal = attrs.field(factory=Signal, init=False)

    @contextmanager
    def begin(self, group_id: str) -> Iterator[None]:
        """Mark the group's state as being deleted until the block ends."""
        self._counts[group_id] += 1
        try:
            yield
        finally:
            self._counts[group_id] -= 1
            if not self._counts[group_id]:
                del self._counts[group_id]
                self._ended.notify()

    async def wait_ended(self, group_id: str) -> None:
        """Wait until no state of the group is being deleted."""
        while group_id in self._counts:
            await self._ended.wait()
