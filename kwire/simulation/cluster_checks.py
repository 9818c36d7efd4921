"""What must hold at every moment of a cluster simulation, by books that no node can see.

* What any node hears as committed is the same at the same offset everywhere, and lies on the disks
  of a majority of the voters.
* One controller an epoch writes.
* Every published image is what the committed log makes of it up to there; it never goes back.
* A topic is made only while there is none of its name, and what is gone does not come back.
* No record gives a leadership to a fenced or unknown broker.
* Whatever a client is told has happened stands in the committed log when it is told.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import attrs

from kwire.codec.messages.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_loader import ImageLoader
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.service import LeaderAndEpoch
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.simulation.clockwork import Violation
from kwire.simulation.raft_disk import SimStorage

TOPIC: Final = 2
"""The resource type of topics' settings."""


@attrs.define(eq=False)
class Books:
    """The memory of the whole cluster."""

    seed: int
    voters: Sequence[int]
    disks: Mapping[int, SimStorage]
    note: Callable[[int, str], None]
    """Adds a line to the trace."""
    committed_end: int = 0
    reference: ImageLoader = attrs.field(factory=ImageLoader)
    """What the committed log makes of the metadata."""
    failures: list[Violation] = attrs.field(factory=list)
    """Found where an exception would end one node only."""
    _batches: dict[int, tuple[int, int, int]] = attrs.field(factory=dict)
    """Base offset to end offset, epoch and digest."""
    _images: dict[int, int] = attrs.field(factory=dict)
    """Offset to the digest of the image up to there."""
    _writers: dict[int, int] = attrs.field(factory=dict)
    _topic_ids: set[bytes] = attrs.field(factory=set)

    def fail(self, text: str) -> None:
        self.failures.append(Violation(text))

    @property
    def image(self) -> MetadataImage:
        return self.reference.image

    # What nodes do --------------------------------------------------------------------------
    def on_append(self, node_id: int, epoch: int) -> None:
        known = self._writers.setdefault(epoch, node_id)
        if known != node_id:
            self.fail(f"n{known} and n{node_id} both write in epoch {epoch}")

    def on_commit(self, node_id: int, batch: CommittedBatch) -> None:
        """A node hears that a batch is committed; the first to hear it writes it down."""
        said = (batch.end_offset, batch.epoch, crc32(repr(batch.records).encode()))
        if batch.base_offset in self._batches:
            if self._batches[batch.base_offset] != said:
                self.fail(f"n{node_id}: something else is committed at {batch.base_offset}")
            return
        if batch.base_offset != self.committed_end:
            self.fail(f"n{node_id}: {batch.base_offset} is committed after {self.committed_end}")
            return
        holders = [n for n in self.voters if self.disks[n].durable.end_offset >= batch.end_offset]
        if 2 * len(holders) <= len(self.voters):
            self.fail(f"n{node_id}: {batch.end_offset} is published, but lies on {holders} alone")
        self._batches[batch.base_offset] = said
        self.committed_end = batch.end_offset
        self._check_records(batch)
        applied = Applied(batch.last_offset, batch.epoch, batch.timestamp_ms)
        if self.reference.load(batch.records, applied) is not None:
            self._images[batch.last_offset] = digest(self.image)
        self.note(node_id, f"committed {batch.base_offset}..{batch.last_offset} {kinds(batch)}")

    def _check_records(self, batch: CommittedBatch) -> None:
        image = self.image
        for record in batch.records:
            before = image
            image, _ = apply(image, [record], image.applied)
            where = f"at {batch.base_offset}: {record}"
            match record:
                case TopicRecord():
                    if record.topic_id in self._topic_ids or record.name in before.topic_ids:
                        self.fail(f"a topic is made again {where}")
                    self._topic_ids.add(record.topic_id)
                case RemoveTopicRecord():
                    if record.topic_id not in before.topics:
                        self.fail(f"a topic is removed that is not there {where}")
                case PartitionRecord() | PartitionChangeRecord() if record.leader >= 0:
                    broker = image.brokers.get(record.leader)
                    if broker is None or broker.fenced:
                        self.fail(f"a fenced broker is to lead {where}")
                case _:
                    pass

    def on_image(self, node_id: int, image: MetadataImage, before: int) -> None:
        """A node has published an image; ``before`` is the offset of the one before it."""
        offset = image.applied.offset
        if offset < before:
            self.fail(f"n{node_id}: its image went back from {before} to {offset}")
        if offset in self._images and self._images[offset] != digest(image):
            self.fail(f"n{node_id}: its image at {offset} is not what the log says")
        if offset >= self.committed_end:
            self.fail(f"n{node_id}: its image at {offset} is ahead of what is committed")


@attrs.define(eq=False)
class Watch:
    """The listener of one life of a node that keeps the books; it comes after the publisher."""

    books: Books
    node_id: int
    life: int
    publisher: MetadataPublisher
    _published: int = -1

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            self.books.on_commit(self.node_id, batch)
        self._look()

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self.books.note(self.node_id, f"loads a snapshot up to {reader.id.end_offset}")
        self._look()

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        kind = "is active" if leader.is_active else f"follows n{leader.leader_id}"
        self.books.note(self.node_id, f"{kind} epoch={leader.epoch}")

    def _look(self) -> None:
        image = self.publisher.image
        if image.applied.offset != self._published:
            self.books.on_image(self.node_id, image, self._published)
            self._published = image.applied.offset


def digest(image: MetadataImage) -> int:
    """All that clients see of an image, in a number."""
    topics = [
        (topic.name, topic.id, sorted((n, str(p)) for n, p in topic.partitions.items()))
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
    ]
    configs = sorted((key, sorted(value.items())) for key, value in image.configs.items())
    brokers = sorted((b.id, b.epoch, b.fenced) for b in image.brokers.values())
    return crc32(repr((topics, configs, brokers, sorted(image.features.items()))).encode())


def kinds(batch: CommittedBatch) -> str:
    """The kinds of a batch's records, in a few words."""
    names = [type(record).__name__.removesuffix("Record") for record in batch.records]
    return ",".join(sorted(set(names))) or "control"


def setting(image: MetadataImage, topic: str, name: str) -> Any:
    """A topic's setting as it was set."""
    return image.config(TOPIC, topic).get(name)
