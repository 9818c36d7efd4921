"""Syncs of topics whose records must be durable before they are readable (``flush.messages``).

At most one task at a time syncs a log. Each fsync covers every batch before it.
"""

import logging
from typing import Final

import attrs
import trio

from kwire.errors import KafkaStorageError
from kwire.log.manager import LogManager
from kwire.replica.completion import Completion
from kwire.replica.partition import Partition

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


@attrs.define(eq=False, repr=False)
class RequiredSyncs:
    """The tasks that sync logs as ``flush.messages`` requires."""

    logs: LogManager
    completion: Completion
    _nursery: trio.Nursery | None = None
    _syncing: set[Partition] = attrs.field(factory=set)
    """Partitions whose logs a task is syncing."""

    def start(self, partition: Partition) -> None:
        """Start a sync of a log if its topic requires one and none is running."""
        if not partition.log.must_flush or partition in self._syncing:
            return
        if self._nursery is None:
            partition.log.flush_state.flush()
            self.completion.on_stored(partition)
        else:
            self._syncing.add(partition)
            self._nursery.start_soon(self._sync, partition)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sync in tasks until cancelled; while this is not running, :meth:`start` syncs at once."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def _sync(self, partition: Partition) -> None:
        """Sync a log until no required sync is left."""
        try:
            while (
                (leader := partition.leader) is not None
                and (log := partition.log).must_flush
                and leader.log_end < log.end_offset
            ):
                try:
                    await self.logs.flush(log, log.end_offset)
                except KafkaStorageError as error:
                    if partition.log is not log:  # The log was moved to another directory.
                        continue
                    logger.error("flush failed partition=%s error=%s", log.partition, error)
                    self.completion.on_sync_failed(partition)
                    await trio.sleep(_RETRY_S)
                else:
                    self.completion.on_stored(partition)
            # Another flush, e.g. for flush.ms, may have synced these records first.
            self.completion.on_stored(partition)
        finally:
            self._syncing.discard(partition)
