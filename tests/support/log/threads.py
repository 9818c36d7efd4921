"""Threads of log directories for tests: calls without a thread, and a disk that hangs."""

from collections.abc import Callable
from typing import TypeVar

import attrs
import trio

from kwire.log.disk import Disk
from kwire.log.threads import DiskThreads

T = TypeVar("T")


async def at_once(call: Callable[[], None]) -> None:
    """Make the call without a thread, for which the test's clock would not wait."""
    await trio.lowlevel.checkpoint()
    call()


@attrs.define(eq=False)
class HangingThreads(DiskThreads):
    """Threads that wait for one of the disks until the test is over."""

    hung: Disk | None = None
    released: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, disk: Disk, call: Callable[[], T]) -> T:
        if disk is self.hung:
            await self.released.wait()
        else:
            await trio.lowlevel.checkpoint()
        return call()
