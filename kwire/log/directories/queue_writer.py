"""The writer of the batches that are queued because their directory is slow.

Rules: a log with queued batches has one task, which gives one job at a time to a thread. Before
:meth:`DirectoryService.run` and after it there are no tasks: the batches are then written at once.
"""

import logging
from collections.abc import Callable

import trio

from kwire import attrs
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk_health import RETRY_SECONDS, lacks_descriptors
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import InThread

logger = logging.getLogger(__name__)


def _ignore(_: PartitionLog) -> None: ...


@attrs.define(eq=False)
class QueueWriter:
    """Writes the queued batches of one directory's logs."""

    directory: LogDirectory
    in_thread: InThread
    busy: BusyLogs
    on_written: Callable[[PartitionLog], None] = _ignore
    """Called when queued batches of a log have been written."""
    nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    """The tasks that write; None while the directory's tasks do not run."""

    def start(self, log: PartitionLog) -> None:
        """Begin to write the queued batches of a log, unless a task does so already."""
        if log in self.busy.writes:
            return
        if self.nursery is None:
            log.write_queued()
            return
        self.busy.writes[log] = trio.Event()
        self.nursery.start_soon(self._drain, log)

    async def _drain(self, log: PartitionLog) -> None:
        """Write until the log's queue is empty."""
        try:
            while log.writer.queue.queue:
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    job = log.writer.queue.take()
                    with trio.CancelScope(shield=True):  # A taken job is no longer queued.
                        await self.in_thread(log.disk, job.run)
                except OSError as error:
                    logger.error("write failed partition=%s error=%s", log.partition, error)
                    if not self._may_write_again(log, error):
                        return
                    await trio.sleep(RETRY_SECONDS)
                    continue
                log.on_written()
                self.on_written(log)
        finally:
            self.busy.writes.pop(log).set()

    def _may_write_again(self, log: PartitionLog, error: OSError) -> bool:
        """Put a failed job back into the queue; return whether to retry it soon."""
        if log.writer.queue.running is not None:
            log.writer.queue.put_back()
        return not self.directory.note_failure() and lacks_descriptors(error)
