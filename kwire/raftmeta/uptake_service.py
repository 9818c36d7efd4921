"""Lets this node's parts take up each published image, in order and one at a time.

Taking up may await (a new partition's directory is made there), publishing does not.  The image
that requests see is the last one that was taken up whole, so whoever sees it can rely on what it
says being there, and whoever changed the metadata through this node waits for it here.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from kwire.raftmeta.image import MetadataImage
from kwire.raftmeta.image_change import MetadataDelta
from kwire.raftmeta.publisher import MetadataPublisher

TakeUp = Callable[[MetadataDelta], Awaitable[None]]


@attrs.define(eq=False)
class Uptake:
    """One node's, behind its publisher."""

    parts: list[TakeUp] = attrs.field(factory=list)
    image: MetadataImage = attrs.field(factory=MetadataImage)
    """What every part has taken up."""
    _deltas: deque[MetadataDelta] = attrs.field(factory=deque, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _waiting: list[tuple[int, trio.Event]] = attrs.field(factory=list, init=False)

    def follow(self, publisher: MetadataPublisher) -> None:
        """Hear of every image from now on."""
        publisher.subscribe(self._published)

    def _published(self, image: MetadataImage, delta: MetadataDelta) -> None:
        del image
        self._deltas.append(delta)
        self._news.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take up until cancelled; a part that fails here fails the node."""
        task_status.started()
        while True:
            while self._deltas:
                await self._take_up(self._deltas.popleft())
            self._news = trio.Event()
            await self._news.wait()

    async def _take_up(self, delta: MetadataDelta) -> None:
        for part in self.parts:
            await part(delta)
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
