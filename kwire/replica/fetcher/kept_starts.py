"""Stores the log starts that a leader announces before this follower reports them as its own.

A leader acknowledges a deletion of records (DeleteRecords) when all in-sync replicas have reported
the new start. A replica that reported a start without storing it would show the deleted records
again after being killed. Rules: one write stores the starts of all waiting logs; a disk that hangs
delays a fetch by at most :data:`WAIT_S`, and the starts on that disk are reported once the disk has
responded; the starts on a disk that fails are retried alone.
"""

import logging
from collections.abc import Callable
from typing import Final

import attrs
import trio

from kwire.log.manager import LogManager
from kwire.replica.fetcher.followed_partition import FollowedPartition

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.1
"""The longest time for which a fetch waits so that it can report the starts."""
RETRY_S: Final = 0.5


@attrs.define(eq=False, repr=False)
class KeptStarts:
    """Log starts announced by one leader that this broker has not stored yet."""

    logs: LogManager
    on_kept: Callable[[FollowedPartition], None]
    _waiting: dict[FollowedPartition, None] = attrs.field(factory=dict)
    """Partitions whose starts are not stored yet, including those in the current write."""
    _is_longer: bool = False
    """True if a partition was added since the last :meth:`keep`."""
    _running: trio.Event | None = None
    """Set when the task that stores starts ends; None while no such task runs."""

    def add(self, followed: FollowedPartition) -> None:
        """Store a partition's log start with the next write."""
        if followed not in self._waiting:
            self._waiting[followed] = None
            self._is_longer = True

    async def keep(self, nursery: trio.Nursery) -> bool:
        """Start to store the added starts and wait briefly; return False if none were added."""
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
        logs = [followed.partition.log for followed in current]
        starts = [(log.log_start, log.flush_state.ended_cut_count) for log in logs]
        failures = await self.logs.keep_starts(logs)
        for followed, log, (start, cut_count) in zip(current, logs, starts, strict=True):
            if log in failures or log.flush_state.ended_cut_count != cut_count:
                continue
            followed.kept_start = start
            if not followed.must_keep_start:
                del self._waiting[followed]
            self.on_kept(followed)
        if failures:
            error = next(iter(failures.values()))
            logger.error("cannot store log starts partitions=%d error=%s", len(failures), error)
            await trio.sleep(RETRY_S)
