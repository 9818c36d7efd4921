"""Stores the log starts that a leader announces, before this follower reports them as its own.

A leader acknowledges a deletion of records (DeleteRecords) when all replicas in sync have reported
the new start; a replica that reported one and was killed would show the deleted records again.
Rules: one write stores the starts of all logs that wait; a disk that hangs delays no fetch for
longer than :data:`WAIT_S`, and the starts on it are reported when it has answered.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from kwire import attrs
from kwire.errors import KafkaError
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.ports import Logs

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.1
"""The time for which the next fetch waits for the starts, so that it can report them."""
RETRY_S: Final = 0.5


@attrs.define(eq=False)
class KeptStarts:
    """The log starts of one leader's followers that are not stored yet."""

    logs: Logs
    on_kept: Callable[[FollowedPartition], None]
    _waiting: dict[FollowedPartition, None] = attrs.field(factory=dict)
    """Partitions that wait, also for the write that is under way."""
    _is_longer: bool = False
    """Whether a partition has been added since the last fetch."""
    _running: trio.Event | None = None
    """Set when the task that stores starts has ended; None while there is none."""

    def add(self, followed: FollowedPartition) -> None:
        """Store a partition's log start with the next write."""
        if followed not in self._waiting:
            self._waiting[followed] = None
            self._is_longer = True

    async def keep(self, nursery: trio.Nursery) -> bool:
        """Store what was added, and return whether anything was; soon, even if it takes long."""
        if not self._is_longer:
            return False
        self._is_longer = False
        if self._running is None:
            self._running = trio.Event()
            nursery.start_soon(self._run, self._running)
        with trio.move_on_after(WAIT_S):
            await self._running.wait()
        return True

    async def _run(self, running: trio.Event) -> None:
        try:
            while self._waiting:
                await self._keep_waiting()
        finally:
            self._running = None
            running.set()

    async def _keep_waiting(self) -> None:
        current = [followed for followed in self._waiting if followed.is_current]
        self._waiting = dict.fromkeys(current)
        starts = [followed.partition.log.start_offset for followed in current]
        try:
            await self.logs.keep_starts([followed.partition.log for followed in current])
        except (KafkaError, OSError) as error:
            logger.error("cannot store log starts error=%s", error)
            await trio.sleep(RETRY_S)
            return
        for followed, start in zip(current, starts, strict=True):
            followed.kept_start = start
            if not followed.must_keep_start:
                del self._waiting[followed]
            self.on_kept(followed)
