"""Large changes of the metadata come into force as a whole, and do not block other tasks."""

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.image_loader import STEP_RECORDS, ImageLoader
from kwire.raftmeta.metadata.image_records import image_records
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.events import LeaderKnown
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader, pack, unpack
from simulation.raft.quorums import quorum_of_one
from tests.support.raftmeta.clusters import registration


def topic(number: int, partitions: int, *, replicas: Sequence[int] = (1, 2, 3)) -> list[Any]:
    topic_id = number.to_bytes(16)
    return [
        r.TopicRecord(name=f"t{number}", topic_id=topic_id),
        *(
            r.PartitionRecord(
                partition_id=n,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=list(replicas),
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[registration(broker).log_dirs[0] for broker in replicas],
            )
            for n in range(partitions)
        ),
    ]


def read(records: Sequence[Any]) -> tuple[Any, ...]:
    """Return the records as they come from disk: nothing in them is shared."""
    return tuple(unpack(pack(record)) for record in records)


def commit(base: int, records: Sequence[Any]) -> CommittedBatch:
    return CommittedBatch(base, base + len(records) - 1, 1, 0, tuple(records))


def snapshot(end: int, records: Sequence[Any]) -> SnapshotReader:
    return SnapshotReader(SnapshotId(end, 1), b"", (commit(0, records),))


async def images_during(publisher: MetadataPublisher, work: Any) -> list[MetadataImage]:
    """Return the image that another task sees in each of its turns during ``work``."""
    images = []
    done = False

    async def look() -> None:
        while not done:
            images.append(publisher.image)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        if work is not None:
            await work
        done = True
    return images


async def test_large_snapshot_is_published_as_a_whole() -> None:
    """Invariant 49: other tasks run meanwhile, and see only the image before."""
    publisher = MetadataPublisher()
    publisher.on_commit([commit(0, topic(1, 10))])
    before = publisher.image
    images = await images_during(publisher, publisher.on_snapshot(snapshot(9000, topic(2, 20_000))))
    assert len(images) > 3, "another task had a turn"
    assert all(image is before for image in images)
    assert [t.name for t in publisher.image.topics.values()] == ["t2"]
    assert publisher.image.applied.offset == 8999


async def test_large_batch_is_published_as_a_whole() -> None:
    """Invariant 49, for a creation of 20,000 partitions."""
    publisher = MetadataPublisher()
    publisher.on_commit([commit(0, topic(1, 10))])
    before = publisher.image
    images = await images_during(publisher, publisher.on_commit([commit(11, topic(2, 20_000))]))
    assert len(images) > 3
    assert all(image is before for image in images)
    assert len(publisher.image.topics[(2).to_bytes(16)].partitions) == 20_000


def test_a_step_of_a_load_is_short() -> None:
    """A load takes a step for every dozen records, also where topics have one partition."""
    records = [record for number in range(1, 2001) for record in topic(number, 1)]
    loader = ImageLoader()
    steps = sum(1 for _ in loader.loading_snapshot(records, Applied(9, 1)))
    assert steps >= 2 * (len(records) // 2 // STEP_RECORDS)
    assert len(loader.image.topics) == 2000


async def test_quorum_delivers_no_batch_while_a_load_is_in_progress() -> None:
    """Invariant 49: a later batch waits until the listener has taken the one before it."""

    @attrs.define
    class Slow:
        offsets: list[int] = attrs.field(factory=list)
        gate: trio.Event = attrs.field(factory=trio.Event)

        async def _rest(self, offset: int) -> None:
            await self.gate.wait()
            self.offsets.append(offset)

        def on_commit(self, batches: Sequence[CommittedBatch]) -> Any:
            return self._rest(batches[-1].last_offset)

        def on_snapshot(self, reader: SnapshotReader) -> None: ...

    slow = Slow()
    async with quorum_of_one(slow) as quorum:
        await trio.testing.wait_all_tasks_blocked()
        commits = [quorum.append_nowait([r.NoOpRecord()], quorum.state.epoch) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert slow.offsets == []
        slow.gate.set()
        await commits[-1].wait()
        assert slow.offsets == sorted(slow.offsets)
        assert slow.offsets[-1] == commits[-1].offset


async def test_leader_is_announced_after_everything_before_it_is_loaded() -> None:
    """An active controller starts from the published image, which must have all earlier records."""

    @attrs.define
    class Slow:
        received: list[str] = attrs.field(factory=list)
        gate: trio.Event = attrs.field(factory=trio.Event)

        async def _rest(self) -> None:
            await self.gate.wait()
            self.received.append("records")

        def on_commit(self, batches: Sequence[CommittedBatch]) -> Any:
            return self._rest()

        def on_snapshot(self, reader: SnapshotReader) -> None: ...

        def on_leadership(self, leader: LeaderAndEpoch) -> None:
            self.received.append("leader")

    slow = Slow()
    async with quorum_of_one(slow) as quorum:
        quorum.add_leadership_listener(slow)
        await trio.testing.wait_all_tasks_blocked()
        quorum.append_nowait([r.NoOpRecord()], quorum.state.epoch)
        await trio.testing.wait_all_tasks_blocked()
        slow.received.clear()
        quorum.delivery.put(LeaderKnown(2, quorum.state.epoch + 1, False))
        await trio.testing.wait_all_tasks_blocked()
        assert slow.received == []
        slow.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert slow.received[-2:] == ["records", "leader"]


@pytest.mark.parametrize("seed", range(8))
async def test_published_images_are_prefixes_of_the_log(seed: int) -> None:
    """Invariant 49: through batches, metadata transactions and snapshots, whole or half read.

    A deleted topic never comes back, and its id is not given to another.
    """
    random = Random(seed)
    batches: list[tuple[Any, ...]] = []
    alive: list[int] = []
    in_transaction = False
    for number in range(1, 40):
        records: list[Any] = topic(number, random.choice((1, 5, 300)))
        alive.append(number)
        if len(alive) > 3 and random.random() < 0.4:
            deleted = alive.pop(random.randrange(len(alive)))
            records.append(r.RemoveTopicRecord(topic_id=deleted.to_bytes(16)))
        if not in_transaction and random.random() < 0.2:
            records = [r.BeginTransactionRecord(name="t"), *records]
            in_transaction = True
        elif in_transaction and random.random() < 0.5:
            records.append(r.EndTransactionRecord())
            in_transaction = False
        batches.append(tuple(records))
    prefixes: dict[int, MetadataImage] = {-1: MetadataImage()}
    loader, base = ImageLoader(), 0
    for batch in batches:
        base += len(batch)
        if loader.load(batch, Applied(base - 1, 1, 0)) is not None:
            prefixes[base - 1] = loader.image

    publisher = MetadataPublisher()
    published: list[int] = []
    vanished: set[bytes] = set()

    def check(image: MetadataImage, delta: MetadataDelta) -> None:
        expected = attrs.evolve(prefixes[image.applied.offset], applied=image.applied)
        assert image == expected
        assert not vanished & set(image.topics)
        vanished.update(delta.deleted_topics)
        published.append(image.applied.offset)

    publisher.subscribe(check)
    base = 0
    skipped_to = 0
    for batch in batches:
        first, base = base, base + len(batch)
        if first < skipped_to:
            continue
        if random.random() < 0.1:
            skipped_to = (
                random.choice([end for end in prefixes if end >= first][:3] or [base - 1]) + 1
            )
            if skipped_to - 1 in prefixes:
                image = prefixes[skipped_to - 1]
                work = publisher.on_snapshot(snapshot(skipped_to, list(image_records(image))))
                for visible in await images_during(publisher, work):
                    assert visible.applied.offset in prefixes
                continue
            skipped_to = 0
        for visible in await images_during(publisher, publisher.on_commit([commit(first, batch)])):
            assert visible.applied.offset in prefixes
    assert published == sorted(published)
    assert len(published) > 5


def test_directory_ids_and_replica_lists_are_shared_in_memory() -> None:
    """Objects, not bytes: 100,000 partitions on three brokers have three directory ids."""
    brokers = [registration(broker) for broker in (1, 2, 3)]
    loader = ImageLoader()
    loader.load_snapshot(read([*brokers, *topic(1, 500), *topic(2, 500)]), Applied(9, 1))
    loader.load(read(topic(3, 500)), Applied(20, 1))
    change = r.PartitionChangeRecord(
        topic_id=(1).to_bytes(16),
        partition_id=0,
        isr=[1, 2],
        directories=[registration(broker).log_dirs[0] for broker in (1, 2, 3)],
    )
    loader.load(read([change]), Applied(21, 1))
    partitions = [p for t in loader.image.topics.values() for p in t.partitions.values()]
    assert len({id(directory_id) for p in partitions for directory_id in p.directories}) == 3
    assert len({id(p.directories) for p in partitions}) <= 3, "one tuple a load"
    assert len({id(p.replicas) for p in partitions} | {id(p.isr) for p in partitions}) <= 4
