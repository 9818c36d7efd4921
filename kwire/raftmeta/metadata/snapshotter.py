"""Takes snapshots of the metadata when they are due, so that the log does not grow forever.

Like the publisher, it is a listener of the quorum. Every node takes its own snapshots of the
committed image; the quorum then drops everything that the second newest snapshot already contains.
Rules: no snapshot while a metadata transaction is open; at most one is in progress; a failed
snapshot is retried after further changes.
"""

import logging
from collections.abc import Sequence

import attrs
import trio

from kwire.clock import Clock
from kwire.raftmeta.metadata.publisher import MetadataPublisher, snapshot_contents
from kwire.raftmeta.metadata.snapshot_cadence import SnapshotCadence
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.storage.levels import level_of
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.waits import Signal

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Snapshotter:
    """The snapshots of one quorum. Create it before the quorum runs, after the publisher."""

    quorum: RaftService
    publisher: MetadataPublisher
    cadence: SnapshotCadence
    clock: Clock
    _is_due: Signal = attrs.field(factory=Signal)

    def __attrs_post_init__(self) -> None:
        self.quorum.add_record_listener(self)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        was_idle = not self.cadence.size_bytes
        now = self.clock.now()
        self.cadence.on_commit(sum(batch.size_bytes for batch in batches), now)
        if was_idle or self.cadence.due(now):
            self._is_due.notify()

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self.cadence.on_snapshot()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take snapshots until cancelled."""
        task_status.started()
        while True:
            now = self.clock.now()
            if self.cadence.due(now) and not self.publisher.in_transaction:
                await self._make()
                continue
            wait = self.cadence.deadline - now
            with trio.move_on_after(wait if wait > 0 else float("inf")):
                await self._is_due.wait()

    async def _make(self) -> None:
        image = self.publisher.image
        self.cadence.on_snapshot()
        applied = image.applied
        try:
            snapshot = await self.quorum.snapshots.write(
                applied.offset + 1,
                applied.epoch,
                snapshot_contents(image),
                applied.timestamp_ms,
                level_of(image.features),
            )
        except OSError as error:
            logger.error("metadata snapshot failed offset=%d error=%s", applied.offset, error)
        else:
            logger.info("metadata snapshot end=%d epoch=%d", snapshot.end_offset, snapshot.epoch)
