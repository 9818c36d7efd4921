"""Calls to the metadata storage, repeated while the process lacks file descriptors.

Rule: while a call waits, this node sends no vote and no records that are not durable.
"""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

import trio

from kwire.clock import Clock
from kwire.errors import KafkaStorageError
from kwire.log.disk_health import lacks_descriptors
from kwire.raftmeta.storage.scarcity import Scarcity
from kwire.raftmeta.storage.storage import MetadataStorage

T = TypeVar("T")


class DiskCalls:
    """The calls to one node's metadata storage."""

    def __init__(self, storage: MetadataStorage, clock: Clock) -> None:
        self._scarcity = Scarcity(storage, clock)

    async def run(
        self,
        call: Callable[[], T],
        *,
        in_thread: bool = False,
        can_go_on: Callable[[], bool] = lambda: True,
        wait_ready: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """Make a call that opens files; when descriptors run out, wait and retry.

        ``wait_ready`` is awaited before each attempt.
        """
        for attempt in count():
            if wait_ready is not None:
                await wait_ready()
            try:
                return await trio.to_thread.run_sync(call) if in_thread else call()
            except (OSError, KafkaStorageError) as error:
                if not lacks_descriptors(error) or not can_go_on():
                    raise
                await self.wait_descriptors(error, attempt)
        raise AssertionError("counting ended")

    async def wait_descriptors(self, error: Exception, attempt: int) -> None:
        """Wait after a call failed for lack of descriptors; attempts count from 0."""
        await trio.sleep(self._scarcity.wait_s(error, attempt))
