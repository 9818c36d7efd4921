"""Publishes committed metadata to this node: images in order, each taken up before the next.

A listener of the quorum.  Committed records become an image; the subscribers take it up one
after the other (they may await: a new partition's directory is made there), and only then is the
image the current one, so whoever sees it can rely on what it says being there.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from kwire.raftmeta.image import Applied, MetadataImage
from kwire.raftmeta.image_change import MetadataDelta
from kwire.raftmeta.image_loader import ImageLoader
from kwire.raftmeta.records import CommittedBatch, SnapshotReader
from kwire.raftmeta.service import LeaderAndEpoch

Subscriber = Callable[[MetadataDelta], Awaitable[None]]


@attrs.define(eq=False)
class Publisher:
    """Follows the metadata for one node."""

    loader: ImageLoader = attrs.field(factory=ImageLoader)
    image: MetadataImage = attrs.field(factory=MetadataImage)
    """The image that every subscriber has taken up."""
    subscribers: list[Subscriber] = attrs.field(factory=list)
    _deltas: deque[MetadataDelta] = attrs.field(factory=deque, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _waiting: list[tuple[int, trio.Event]] = attrs.field(factory=list, init=False)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        records = [record for batch in batches for record in batch.records]
        last = batches[-1]
        loaded = self.loader.load(records, Applied(last.last_offset, last.epoch, last.timestamp_ms))
        if loaded is not None:
            self._queue(loaded[1])

    def on_snapshot(self, reader: SnapshotReader) -> None:
        applied = Applied(reader.id.end_offset - 1, reader.id.epoch)
        self._queue(self.loader.load_snapshot(reader.records(), applied)[1])

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        """Nothing: who leads the quorum is not part of the image."""

    def _queue(self, delta: MetadataDelta) -> None:
        self._deltas.append(delta)
        self._news.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish until cancelled."""
        task_status.started()
        while True:
            while self._deltas:
                await self._publish(self._deltas.popleft())
            self._news = trio.Event()
            await self._news.wait()

    async def _publish(self, delta: MetadataDelta) -> None:
        for subscriber in self.subscribers:
            await subscriber(delta)
        self.image = delta.after
        offset = delta.after.applied.offset
        ready = [event for at, event in self._waiting if at <= offset]
        if ready:
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > offset]
            for event in ready:
                event.set()

    async def wait_until(self, offset: int) -> None:
        """Until this node works with what stands at ``offset``."""
        if self.image.applied.offset < offset:
            event = trio.Event()
            self._waiting.append((offset, event))
            await event.wait()
