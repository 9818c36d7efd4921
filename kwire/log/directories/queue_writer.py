"""The writer of batches that are queued because their directory is slow.

Rules: a log with queued batches has one task, which gives a thread one job at a time. A job that
fails while the directory stays online is retried after a delay, even if nothing is appended: a
follower fetches nothing until its queue is written, and idempotent producers only resend batches
that are already queued. Without queued batches, no task wakes up. Before and after
:meth:`DirectoryService.run` there are no tasks; batches are then written synchronously.
"""

import logging
from collections.abc import Callable

import attrs
import trio

from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk_health import RETRY_SECONDS
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import InThread
from kwire.log.write_queue import Cut

logger = logging.getLogger(__name__)


def _ignore(_: PartitionLog) -> None: ...


@attrs.define(eq=False, repr=False)
class QueueWriter:
    """Writes the queued batches of one directory's logs."""

    directory: LogDirectory
    in_thread: InThread
    busy: BusyLogs
    on_written: Callable[[PartitionLog], None] = _ignore
    """Called when queued batches of a log were written."""
    nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    """Runs the writing tasks; None while the directory's tasks are not running."""
    _retried: set[PartitionLog] = attrs.field(init=False, factory=set)
    """Logs whose failed write is waiting to be retried."""

    def start(self, log: PartitionLog) -> None:
        """Start writing the queued batches of a log, unless a task is already doing so."""
        if log in self.busy.queues:
            return
        if self.nursery is None:
            log.write_queued()
            return
        self.busy.queues[log] = trio.Event()
        self.nursery.start_soon(self._drain, log)

    async def _drain(self, log: PartitionLog) -> None:
        """Write until the log's queue is empty."""
        queues = self.busy.queues
        try:
            while self._has_queue(log):
                await trio.lowlevel.checkpoint_if_cancelled()
                await self.busy.wait_turn(log)
                if not self._has_queue(log):
                    return
                if not _has_room(log) or not await self._write(log):
                    self._retry_later(log)
                    return
                queues[log].set()
                queues[log] = trio.Event()
        finally:
            queues.pop(log).set()

    async def _write(self, log: PartitionLog) -> bool:
        """Run the queue's next job in a thread; return whether it succeeded."""
        ended = self.busy.writes[log] = trio.Event()
        try:
            job = log.writer.queue.take()
            with trio.CancelScope(shield=True):  # A job that was taken is no longer in the queue.
                await self.in_thread(log.disk, job.run)
            log.on_written()
        except OSError as error:
            logger.error("write failed partition=%s error=%s", log.partition, error)
            if log.writer.queue.running is not None:
                log.writer.queue.put_back()
            self.directory.note_failure()
            return False
        finally:
            del self.busy.writes[log]
            ended.set()
        self.on_written(log)
        return True

    def _retry_later(self, log: PartitionLog) -> None:
        """Schedule a retry after a delay, once the disk has room, while the directory is online.

        Meanwhile the log is idle, so that it can be truncated or deleted, which may free space.
        """
        if self.nursery is not None and self.directory.online and log not in self._retried:
            self._retried.add(log)
            self.nursery.start_soon(self._retry, log)

    async def _retry(self, log: PartitionLog) -> None:
        try:
            while self._has_queue(log) and log not in self.busy.queues:
                await trio.sleep(RETRY_SECONDS)
                if self._has_queue(log) and _has_room(log):
                    break
        finally:
            self._retried.discard(log)
        if self._has_queue(log):
            self.start(log)

    def _has_queue(self, log: PartitionLog) -> bool:
        """Return whether a log has queued batches that can still be written here."""
        is_here = self.directory.online and self.directory.holds(log)
        return is_here and bool(log.writer.queue.queue)


def _has_room(log: PartitionLog) -> bool:
    """Return whether the next job may run: a cut needs no room; batches leave the reserve."""
    return isinstance(log.writer.queue.queue[0], Cut) or log.writer.has_room()
