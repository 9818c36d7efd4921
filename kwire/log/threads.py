"""Calls that wait for a disk, made in threads: a few at a time for each log directory.

Rule: each directory has its own limit. A disk that hangs may block its own threads forever, but
never a call for another directory.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from kwire.log.disk import Disk
from kwire.log.disk_health import lacks_descriptors

THREADS: Final = 4
"""The largest number of concurrent calls that wait for one directory."""
T = TypeVar("T")
InThread = Callable[[Disk, Callable[[], None]], Awaitable[None]]
StandIn = Callable[[Callable[[], None]], Awaitable[None]]


@attrs.define(eq=False, repr=False)
class DiskThreads:
    """The threads of all directories."""

    stand_in: StandIn | None = None
    """Runs calls in place of :meth:`run_shedding`'s threads; set by tests."""
    _limiters: dict[Disk, trio.CapacityLimiter] = attrs.field(factory=dict)

    async def run(self, disk: Disk, call: Callable[[], T]) -> T:
        """Make a call in a thread of this disk and return its result."""
        limiter = self._limiters.get(disk)
        if limiter is None:
            limiter = self._limiters[disk] = trio.CapacityLimiter(THREADS)
        return await trio.to_thread.run_sync(call, limiter=limiter)

    async def run_shedding(self, disk: Disk, call: Callable[[], None]) -> None:
        """Make a call in a thread; if it runs out of descriptors, close idle files and retry once.

        A thread cannot close idle files to free descriptors, so the event loop does.
        """
        in_thread = self.stand_in or partial(self.run, disk)
        try:
            await in_thread(call)
        except OSError as error:
            if not lacks_descriptors(error) or not disk.shed():
                raise
            await in_thread(call)
