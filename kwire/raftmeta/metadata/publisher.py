"""Publishes the metadata: every commit becomes an image, which this node then applies.

First, the appliers run, one publication after the other; they may await, for example while replicas
open logs. Then, the subscribers are called, for which the image is already in force here. Finally,
``wait_applied`` returns to its callers, so when CreateTopics is answered, this node already serves
the topic. An applier must not call the controller, which would wait for the applier.

The first publication is the whole metadata at the time :meth:`MetadataPublisher.run` starts. The
logs on disk match today's metadata: an earlier leader epoch, ISR or assignment from the history
would be applied to the wrong records.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import trio

from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.drive import Slices, run_steps
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import ImageChange, MetadataDelta, changes_all_topics
from kwire.raftmeta.metadata.image_loader import ImageLoader, Published, Steps
from kwire.raftmeta.metadata.image_records import image_records
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.waits import OffsetWaits, Signal

Applier = Callable[[MetadataDelta], Awaitable[None]]
Subscriber = Callable[[MetadataImage, MetadataDelta], None]

AT_ONCE: Final = 250
"""Records that are applied without yielding to other tasks: about 2 ms of work."""
SNAPSHOT_GROUP: Final = 100
"""Records packed in one step: about 2 ms of work."""


class MetadataPublisher:
    """A listener of the quorum that holds the newest image."""

    def __init__(self) -> None:
        self._loader = ImageLoader()
        self._appliers: list[Applier] = []
        self._subscribers: list[Subscriber] = []
        self._queue: deque[MetadataDelta] = deque()
        self._queued = Signal()
        self._running = False
        self._applied_waits = OffsetWaits()
        """Waits for an offset of the newest image in force."""
        self.applied = self._loader.image
        """The newest image in force on this node."""

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._loader.image

    @property
    def in_transaction(self) -> bool:
        """True if a metadata transaction is open, during which no snapshot may be taken."""
        return self._loader.in_transaction

    def add_applier(self, applier: Applier) -> None:
        """Register an applier. Call this before ``run``, which is required with any applier."""
        self._appliers.append(applier)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` for every image that comes into force from now on."""
        self._subscribers.append(subscriber)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply publications until cancelled; required only if there are appliers."""
        self._running = True
        task_status.started()
        self._queue.appendleft(await self._whole())
        while True:
            while self._queue:
                delta = self._queue[0]
                for applier in self._appliers:
                    await applier(delta)
                self._queue.popleft()
                self._in_force(delta)
            await self._queued.wait()

    async def _whole(self) -> MetadataDelta:
        """Return the newest image as a delta from an empty one."""
        image = self.image
        change = ImageChange(MetadataImage())
        slices = Slices()
        for record in image_records(image):
            change.replay(record)
            await slices.pause()
        return change.finish(image.applied)[1]

    async def wait_applied(self, offset: int) -> None:
        """Wait until an image with the record at ``offset`` is in force on this node.

        Returns at once before ``run`` has started, because nothing is applied while a node starts.
        """
        if self._running and self.applied.applied.offset < offset:
            await self._applied_waits.wait(offset)

    async def wait_for(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Wait until an image that meets the condition is in force on this node."""
        while not condition(self.applied):
            await self._applied_waits.wait(self.applied.applied.offset + 1)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> Awaitable[None] | None:
        last = batches[-1]
        applied = Applied(last.last_offset, last.epoch, last.timestamp_ms)
        count = sum(len(batch.records) for batch in batches)
        records = (record for batch in batches for record in batch.records)
        is_large = count > AT_ONCE or any(
            changes_all_topics(record) for batch in batches for record in batch.records
        )
        return self._take(self._loader.loading(records, applied), is_large=is_large)

    def on_snapshot(self, reader: SnapshotReader) -> Awaitable[None] | None:
        applied = Applied(reader.id.end_offset - 1, reader.id.epoch)
        count = sum(len(batch.records) for batch in reader.decoded or ())
        steps = self._loader.loading_snapshot(reader.records(), applied)
        return self._take(steps, is_large=count > AT_ONCE)

    def _take(self, steps: Steps[Published | None], *, is_large: bool) -> Awaitable[None] | None:
        """Run the steps and publish the result: at once for little work, otherwise when awaited."""
        if is_large:
            return self._take_in_slices(steps)
        published = run_steps(steps)
        if published is not None:
            self._publish(*published)
        return None

    async def _take_in_slices(self, steps: Steps[Published | None]) -> None:
        slices = Slices()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                if end.value is not None:
                    self._publish(*end.value)
                return
            await slices.pause()

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert delta.after is image
        if not self._appliers:
            self._in_force(delta)
        elif self._running:
            self._queue.append(delta)
            self._queued.notify()

    def _in_force(self, delta: MetadataDelta) -> None:
        self.applied = delta.after
        for subscriber in self._subscribers:
            subscriber(delta.after, delta)
        self._applied_waits.reach(delta.after.applied.offset)


def snapshot_contents(image: MetadataImage) -> Iterator[list[MetadataRecord]]:
    """Yield an image's records in groups, for ``SnapshotWriter.write``."""
    group: list[MetadataRecord] = []
    for record in image_records(image):
        group.append(record)
        if len(group) == SNAPSHOT_GROUP:
            yield group
            group = []
    if group:
        yield group
