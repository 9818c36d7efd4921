"""The metadata of 10,000 partitions as a node takes it in: as a snapshot, and as one change."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages import metadata_records as r
from kwire.drive import Slices
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.decoding import decode_batches, decode_snapshot
from kwire.raftmeta.storage.records import SnapshotReader, pack, snapshot_chunks
from kwire.records.build import New, batch
from tests.support.handlers.broker import broker, topic_id
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

TOPICS: Final = 100
PARTITIONS: Final = 100
ALL: Final = TOPICS * PARTITIONS
REPLICAS: Final = [2, 3]
"""The brokers of the partitions: like most brokers of a large cluster, this one has none."""
BATCH_RECORDS: Final = 500


@attrs.define
class Images:
    """The publisher of a node, whose replicas apply what it publishes."""

    publisher: MetadataPublisher
    meter: TurnMeter
    next_offset: int = 0

    async def load(self, records: Sequence[Any]) -> None:
        """Measure a snapshot, from its bytes to the image in force."""
        self.next_offset += len(records)
        name = SnapshotId(self.next_offset, 1)
        chunks = snapshot_chunks(
            name, [records], voters=VoterSet(), kraft_version=0, last_timestamp_ms=0, now_ms=0
        )
        data = b"".join(chunks)
        await trio.lowlevel.checkpoint()
        with self.meter.measuring():
            reader = await decode_snapshot(SnapshotReader(name, data), Slices())
            rest = self.publisher.on_snapshot(reader)
            assert rest is not None
            await rest
            await self.publisher.wait_applied(self.next_offset - 1)

    async def commit(self, records: Sequence[Any]) -> None:
        """Measure one committed change, from the bytes of the log to the image in force."""
        data = b""
        for start in range(0, len(records), BATCH_RECORDS):
            packed = [New(None, pack(record)) for record in records[start : start + BATCH_RECORDS]]
            data += batch(packed, base_offset=self.next_offset, timestamp_ms=0)
            self.next_offset += len(packed)
        await trio.lowlevel.checkpoint()
        with self.meter.measuring():
            rest = self.publisher.on_commit(await decode_batches(data, Slices()))
            assert rest is not None
            await rest
            await self.publisher.wait_applied(self.next_offset - 1)

    def leaders(self) -> set[int]:
        """Return the leaders of all partitions."""
        topics = self.publisher.applied.topics.values()
        return {partition.leader for topic in topics for partition in topic.partitions.values()}

    def count(self) -> int:
        return sum(len(topic.partitions) for topic in self.publisher.applied.topics.values())


def partitions_led_by(leader: int, leader_epoch: int) -> list[Any]:
    """Return the records of all topics and partitions."""
    return [
        record
        for topic in range(TOPICS)
        for record in (
            r.TopicRecord(name=f"topic-{topic}", topic_id=topic_id(f"{topic}")),
            *(
                r.PartitionRecord(
                    partition_id=number,
                    topic_id=topic_id(f"{topic}"),
                    replicas=REPLICAS,
                    isr=REPLICAS,
                    leader=leader,
                    leader_epoch=leader_epoch,
                    partition_epoch=leader_epoch,
                )
                for number in range(PARTITIONS)
            ),
        )
    ]


@asynccontextmanager
async def publisher_of_a_broker(meter: TurnMeter) -> AsyncIterator[Images]:
    publisher = MetadataPublisher()
    publisher.add_applier(broker().replicas.applier.apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(publisher.run)
        yield Images(publisher, meter)
        nursery.cancel_scope.cancel()


IMAGES: Final = Scene("images of the metadata", publisher_of_a_broker)
row = IMAGES.operation


@row("load of the first snapshot", "partitions", ALL, "raftmeta.metadata.publisher.run")
async def load(images: Images, size: int) -> None:
    await images.load(partitions_led_by(2, 0))
    assert images.count() == size


@row("change of all leaders in one commit", "partitions", ALL, after="load of the first snapshot")
async def change(images: Images, size: int) -> None:
    changes = [
        r.PartitionChangeRecord(partition_id=number, topic_id=topic_id(f"{topic}"), leader=3)
        for topic in range(TOPICS)
        for number in range(PARTITIONS)
    ]
    await images.commit(changes)
    assert images.leaders() == {3}


@row(
    "clearing of the eligible replicas of all topics",
    "partitions",
    ALL,
    after="load of the first snapshot",
)
async def clear_elr(images: Images, size: int) -> None:
    eligible = [
        r.PartitionChangeRecord(
            partition_id=number, topic_id=topic_id(f"{topic}"), eligible_leader_replicas=[3]
        )
        for topic in range(TOPICS)
        for number in range(PARTITIONS)
    ]
    await images.commit(eligible)
    await images.commit([r.ClearElrRecord(topic_name="")])
    topics = images.publisher.applied.topics.values()
    assert not any(state.elr for topic in topics for state in topic.partitions.values())


@row(
    "load of a snapshot in which all partitions have changed",
    "partitions",
    ALL,
    after="load of the first snapshot",
)
async def reload(images: Images, size: int) -> None:
    await images.load(partitions_led_by(2, 5))
    assert images.leaders() == {2}
    assert images.count() == size


@row(
    "load of a snapshot without any of the topics",
    "partitions",
    ALL,
    after="load of the first snapshot",
)
async def unload(images: Images, size: int) -> None:
    await images.load([r.TopicRecord(name="other", topic_id=topic_id("other"))] * 300)
    assert not images.count()


@row("creation of all topics in one commit", "partitions", ALL)
async def create(images: Images, size: int) -> None:
    await images.commit(partitions_led_by(2, 0))
    assert images.count() == size
