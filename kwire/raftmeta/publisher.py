"""Publishes the metadata: every commit becomes an image, and subscribers hear what changed.

Subscribers are called in the order they subscribed and within the same turn, before whoever
waits for the commit goes on: so when CreateTopics is answered, this node's replicas know of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kwire.raftmeta.image import Applied, MetadataImage
from kwire.raftmeta.image_change import MetadataDelta
from kwire.raftmeta.image_loader import ImageLoader
from kwire.raftmeta.image_records import image_records
from kwire.raftmeta.records import CommittedBatch, SnapshotReader
from kwire.raftmeta.service import LeaderAndEpoch

Subscriber = Callable[[MetadataImage, MetadataDelta], None]

SNAPSHOT_GROUP: Final = 500


class MetadataPublisher:
    """A listener of the quorum that holds the newest image."""

    def __init__(self) -> None:
        self._loader = ImageLoader()
        self._subscribers: list[Subscriber] = []
        self.leader = LeaderAndEpoch(None, 0)

    @property
    def image(self) -> MetadataImage:
        """The newest published image."""
        return self._loader.image

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction is under way, during which no snapshot may be made."""
        return self._loader.in_transaction

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hear every publication from now on."""
        self._subscribers.append(subscriber)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        records: list[Any] = [record for batch in batches for record in batch.records]
        last = batches[-1]
        published = self._loader.load(
            records, Applied(last.last_offset, last.epoch, last.timestamp_ms)
        )
        if published is not None:
            self._publish(*published)

    def on_snapshot(self, reader: SnapshotReader) -> None:
        applied = Applied(reader.id.end_offset - 1, reader.id.epoch)
        self._publish(*self._loader.load_snapshot(reader.records(), applied))

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        self.leader = leader

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        for subscriber in self._subscribers:
            subscriber(image, delta)


def snapshot_contents(image: MetadataImage) -> Iterator[list[Any]]:
    """An image's records in groups, for ``Quorum.write_snapshot``."""
    group: list[Any] = []
    for record in image_records(image):
        group.append(record)
        if len(group) == SNAPSHOT_GROUP:
            yield group
            group = []
    if group:
        yield group
