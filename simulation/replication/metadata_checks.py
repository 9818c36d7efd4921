"""The metadata invariants of a cluster simulation, checked against state that no node can see.

* All nodes have the same committed batch at an offset. Every committed batch is on the disks of a
  majority of the voters, which change one at a time.
* Only one controller writes in an epoch.
* Every published image equals the committed log replayed up to its offset, which never decreases.
* A topic is created only while no topic has its name, and a removed topic id is never reused.
* No record makes a fenced or unknown broker a leader, or adds one to an ISR (invariant 31).
* A change is in the committed log before a client receives its acknowledgement.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from zlib import crc32

import attrs

from kwire.codec.messages.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kwire.configs.resource_types import TOPIC
from kwire.errors import CorruptMessage
from kwire.log.formats.names import LOG, stem_offset
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_loader import ImageLoader
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.events import Appended, Committed, Effect
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.storage.names import METADATA_DIRECTORY
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.records.header import headers
from simulation.disk import SimDisk
from simulation.raft.checks import Checks
from simulation.replication.processes import world_time
from simulation.scheduler import Violation


@attrs.frozen
class Created:
    """The creation of a topic."""

    topic: str
    topic_id: bytes


@attrs.frozen
class Removed:
    """The removal of a topic."""

    topic: str


@attrs.frozen
class Set:
    """The change of a topic's setting."""

    topic: str
    name: str
    value: str | None


@attrs.frozen
class Expanded:
    """The addition of a partition to a topic."""

    topic: str
    partition_count: int


Change = Created | Removed | Set | Expanded
"""A committed change of a topic."""


@attrs.define(eq=False)
class Books:
    """The committed log, the images and the writers of the whole cluster."""

    seed: int
    voters: Sequence[int]
    """The committed voters."""
    disks: dict[int, SimDisk]
    """The disk of each node's metadata log."""
    note: Callable[[int, str], None]
    """Adds a line to the trace."""
    committed_end: int = 0
    reference: ImageLoader = attrs.field(factory=ImageLoader)
    """The metadata image replayed from the committed log."""
    fenced_at: dict[int, float] = attrs.field(factory=dict)
    """The world's time at which each fenced broker was fenced."""
    changes: list[Change] = attrs.field(factory=list)
    """The committed changes of topics, in log order."""
    failures: list[Violation] = attrs.field(factory=list)
    """The violations found inside a node, where an exception would end only that node."""
    voter_sets: list[tuple[int, ...]] = attrs.field(factory=list)
    """All committed voter sets, in log order."""
    kraft_version: int = 0
    """The committed level of kraft.version."""
    _decisions: list[tuple[int, tuple[int, ...]]] = attrs.field(factory=list)
    """The end offsets that leaders have declared committed, each with the leader's voters."""
    _batches: dict[int, tuple[int, int, int]] = attrs.field(factory=dict)
    """By base offset: the end offset, epoch and digest of each committed batch."""
    _images: dict[int, int] = attrs.field(factory=dict)
    """By offset: the digest of the image up to that offset."""
    _writers: dict[int, int] = attrs.field(factory=dict)
    _topic_ids: set[bytes] = attrs.field(factory=set)

    def fail(self, text: str) -> None:
        self.failures.append(Violation(text))

    @property
    def image(self) -> MetadataImage:
        return self.reference.image

    # Notifications from nodes ---------------------------------------------------------------
    def on_append(self, node_id: int, epoch: int) -> None:
        writer = self._writers.setdefault(epoch, node_id)
        if writer != node_id:
            self.fail(f"n{writer} and n{node_id} both write in epoch {epoch}")

    def on_step(
        self, node_id: int, state: RaftState, effects: Sequence[Effect], *, leads: bool
    ) -> None:
        """Record the voters with which a leader commits: those in its log.

        ``leads``: whether the node led before the step, because a leader resigns in the same step
        in which it commits its own removal.
        """
        try:
            Checks.check_voters(node_id, state)
        except Violation as violation:
            self.failures.append(violation)
        ends = [effect.end_offset for effect in effects if isinstance(effect, Committed)]
        if not ends or not (leads or isinstance(state.role, Leader)):
            return
        end_offset = ends[-1]
        if not self._decisions or end_offset > self._decisions[-1][0]:
            self._decisions.append((end_offset, state.history.sets[-1][1].ids))
            voters, self.kraft_version = state.history.at(end_offset)
            if not self.voter_sets or voters.ids != self.voter_sets[-1]:
                self.voter_sets.append(voters.ids)
                self.voters = voters.ids
                self.note(node_id, f"has committed voters {voters.ids}")

    def on_commit(self, node_id: int, batch: CommittedBatch) -> None:
        """Record a committed batch at its first delivery, and compare later deliveries with it."""
        entry = (batch.end_offset, batch.epoch, crc32(repr(batch.records).encode()))
        if batch.base_offset in self._batches:
            if self._batches[batch.base_offset] != entry:
                self.fail(f"n{node_id}: something else is committed at {batch.base_offset}")
            return
        if batch.base_offset != self.committed_end:
            self.fail(f"n{node_id}: {batch.base_offset} is committed after {self.committed_end}")
            return
        while self._decisions and self._decisions[0][0] < batch.end_offset:
            del self._decisions[0]
        if not self._decisions:
            self.fail(f"n{node_id}: {batch.end_offset} is published, but no leader committed it")
            return
        voters = self._decisions[0][1]
        holders = [n for n in voters if durable_end(self.disks[n]) >= batch.end_offset]
        if 2 * len(holders) <= len(voters):
            self.fail(f"n{node_id}: {batch.end_offset} is published, but lies on {holders} alone")
        self._batches[batch.base_offset] = entry
        self.committed_end = batch.end_offset
        self._check_records(batch)
        applied = Applied(batch.last_offset, batch.epoch, batch.timestamp_ms)
        if self.reference.load(batch.records, applied) is not None:
            self._images[batch.last_offset] = digest(self.image)
            self._note_fenced()
        self.note(node_id, f"committed {batch.base_offset}..{batch.last_offset} {kinds(batch)}")

    def _note_fenced(self) -> None:
        for broker in self.image.brokers.values():
            if not broker.fenced:
                self.fenced_at.pop(broker.id, None)
            elif broker.id not in self.fenced_at:
                self.fenced_at[broker.id] = world_time()

    def _check_records(self, batch: CommittedBatch) -> None:
        image = self.image
        for record in batch.records:
            self._check_joins(image, record)
            before = image
            image, _ = apply(image, [record], image.applied)
            self.changes += changes_by(record, before, image)
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

    def _check_joins(self, image: MetadataImage, record: MetadataRecord) -> None:
        """Check that only unfenced brokers join an ISR."""
        if not isinstance(record, PartitionChangeRecord) or record.isr is None:
            return
        topic = image.topics.get(record.topic_id)
        if topic is None:
            return
        for node in set(record.isr) - set(topic.partitions[record.partition_id].isr):
            broker = image.brokers.get(node)
            if broker is None or broker.fenced:
                self.fail(f"fenced broker {node} joins an ISR: {record}")

    def on_image(self, node_id: int, image: MetadataImage, before: int) -> None:
        """Check a published image; ``before`` is the offset of the node's previous image."""
        offset = image.applied.offset
        if offset < before:
            self.fail(f"n{node_id}: its image went back from {before} to {offset}")
        if offset in self._images and self._images[offset] != digest(image):
            self.fail(f"n{node_id}: its image at {offset} is not what the log says")
        if offset >= self.committed_end:
            self.fail(f"n{node_id}: its image at {offset} is ahead of what is committed")


@attrs.define(eq=False)
class CommitWatch:
    """The quorum listener that reports one process of a node to the books.

    It must be added after the publisher, which then has applied the batches already.
    """

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


@attrs.frozen
class StepWatch:
    """The observer that reports the steps of a node's consensus machine to the books."""

    books: Books
    node_id: int

    def on_step(self, state: RaftState, effects: Sequence[Effect], *, led: bool) -> None:
        if any(isinstance(effect, Appended) for effect in effects):
            self.books.on_append(self.node_id, state.epoch)
        self.books.on_step(self.node_id, state, effects, leads=led)


def durable_end(disk: SimDisk) -> int:
    """Return the end offset up to which a power loss would leave the metadata log as it is.

    Batches that are on the platter, but were truncated since, do not count.
    """
    end_offset = 0
    for name, cached, durable in disk.root.durable_files(METADATA_DIRECTORY):
        offset = stem_offset(name)
        if offset is not None and name.endswith(".checkpoint"):
            end_offset = max(end_offset, offset)
        elif offset is not None and name.endswith(LOG):
            # A loss of power can tear the tail, or fill it with zeros.
            with suppress(CorruptMessage):
                for position, header in headers(durable):
                    batch = slice(position, position + header.size)
                    if durable[batch] != cached[batch]:
                        break
                    end_offset = max(end_offset, header.next_offset)
    return end_offset


def changes_by(
    record: MetadataRecord, before: MetadataImage, after: MetadataImage
) -> Iterator[Change]:
    """Yield the changes of topics that a record makes to an image."""
    match record:
        case TopicRecord():
            yield Created(record.name, record.topic_id)
        case RemoveTopicRecord() if record.topic_id in before.topics:
            yield Removed(before.topics[record.topic_id].name)
        case ConfigRecord() if record.resource_type == TOPIC:
            yield Set(record.resource_name, record.name, record.value)
        case PartitionRecord() if record.topic_id in after.topics:
            topic = after.topics[record.topic_id]
            yield Expanded(topic.name, len(topic.partitions))
        case _:
            pass


def digest(image: MetadataImage) -> int:
    """Return a checksum of everything in an image that clients can see."""
    topics = [
        (topic.name, topic.id, sorted((n, str(p)) for n, p in topic.partitions.items()))
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
    ]
    configs = sorted((key, sorted(value.items())) for key, value in image.configs.items())
    brokers = sorted((b.id, b.epoch, b.fenced) for b in image.brokers.values())
    return crc32(repr((topics, configs, brokers, sorted(image.features.items()))).encode())


def kinds(batch: CommittedBatch) -> str:
    """Return the record types of a batch, for the trace."""
    names = [type(record).__name__.removesuffix("Record") for record in batch.records]
    return ",".join(sorted(set(names))) or "control"


def setting(image: MetadataImage, topic: str, name: str) -> str | None:
    """Return a setting of the topic itself, or None without one."""
    return image.config(TOPIC, topic).get(name)
