"""The first publication of a node that starts: the metadata as it is, not as it came to be."""

import trio

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.records import CommittedBatch

TOPIC = b"t" * 16


def commit(publisher: MetadataPublisher, offset: int, *records: r.MetadataRecord) -> None:
    batch = CommittedBatch(offset, offset + len(records) - 1, 1, 0, tuple(records))
    assert publisher.on_commit([batch]) is None


async def test_former_leaders_and_assignments_are_not_applied_again() -> None:
    """Invariant 25: a log on disk is that of the newest epoch, and an older one would cut it."""
    publisher = MetadataPublisher()
    deltas: list[MetadataDelta] = []

    async def apply(delta: MetadataDelta) -> None:
        await trio.lowlevel.checkpoint()
        deltas.append(delta)

    publisher.add_applier(apply)
    partition = r.PartitionRecord(
        partition_id=0,
        topic_id=TOPIC,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    change = r.PartitionChangeRecord
    commit(publisher, 0, r.TopicRecord(name="t", topic_id=TOPIC), partition)
    commit(publisher, 2, change(partition_id=0, topic_id=TOPIC, replicas=[2], isr=[2], leader=2))
    commit(publisher, 3, change(partition_id=0, topic_id=TOPIC, replicas=[1], isr=[1], leader=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(publisher.run)
        await publisher.wait_applied(3)
        (first,) = deltas
        assert first.partitions == {TOPIC: {0}}
        assert first.after.topics[TOPIC].partitions[0].leader_epoch == 2
        assert first.after == publisher.image
        commit(publisher, 4, change(partition_id=0, topic_id=TOPIC, leader=1))
        await publisher.wait_applied(4)
        assert len(deltas) == 2
        assert deltas[1].partitions == {TOPIC: {0}}
        nursery.cancel_scope.cancel()
