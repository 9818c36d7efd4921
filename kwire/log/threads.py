"""Calls that wait for a disk, made in threads: a few at a time for each log directory.

Rule: the directories share no limit. A disk that hangs may keep its own threads for ever, and no
call of another directory waits for one of them.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import trio

from kwire.log.disk import Disk

THREADS: Final = 4
"""The largest number of calls that wait for one directory at the same time."""
T = TypeVar("T")
InThread = Callable[[Disk, Callable[[], None]], Awaitable[None]]


@attrs.define(eq=False)
class DiskThreads:
    """The threads of all directories."""

    _limiters: dict[Disk, trio.CapacityLimiter] = attrs.field(factory=dict)

    async def run(self, disk: Disk, call: Callable[[], T]) -> T:
        """Make a call in a thread of this disk and return what it returns."""
        limiter = self._limiters.get(disk)
        if limiter is None:
            limiter = self._limiters[disk] = trio.CapacityLimiter(THREADS)
        return await trio.to_thread.run_sync(call, limiter=limiter)
