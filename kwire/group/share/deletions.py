"""Tracks groups whose share state is being deleted, so that no initialization overtakes that.

A member may join while the request to delete its group's state is on its way to the persister. If
the state were initialized before the deletion arrived, the deletion would remove the new state, and
the partitions would stay unreadable, because the group considers them initialized. For the same
reason an initialization that a deletion overtakes does not count.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from kwire.waits import Signal


@attrs.define(eq=False, repr=False)
class Watch:
    """A look-out for deletions of one group's state."""

    group_id: str
    has_deletion: bool = False
    """True once a deletion has begun."""


@attrs.define(eq=False, repr=False)
class Deletions:
    """The deletions in progress on this node, by group."""

    _counts: Counter[str] = attrs.field(factory=Counter, init=False)
    _watches: list[Watch] = attrs.field(factory=list, init=False)
    _ended: Signal = attrs.field(factory=Signal, init=False)

    @contextmanager
    def begin(self, group_id: str) -> Iterator[None]:
        """Mark the group's state as being deleted until the block ends."""
        self._counts[group_id] += 1
        for watch in self._watches:
            watch.has_deletion |= watch.group_id == group_id
        try:
            yield
        finally:
            self._counts[group_id] -= 1
            if not self._counts[group_id]:
                del self._counts[group_id]
                self._ended.notify()

    @contextmanager
    def watch(self, group_id: str) -> Iterator[Watch]:
        """Watch for deletions of the group's state that begin before the block ends."""
        watch = Watch(group_id)
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    async def wait_ended(self, group_id: str) -> None:
        """Wait until no state of the group is being deleted."""
        while group_id in self._counts:
            await self._ended.wait()
