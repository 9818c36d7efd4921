"""The small APIs of the data path: ListOffsets, OffsetForLeaderEpoch, DeleteRecords and others."""

import errno
from functools import partial
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kwire.records import header
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.handlers.broker import (
    NOW_MS,
    Broker,
    broker,
    create_topic,
    one_batch,
    topic_id,
    write,
)
from tests.support.handlers.list_offsets import offsets


class TestListOffsets:
    """Invariants 15 and 17."""

    async def test_search_skips_deleted_records_of_a_batch(self):
        """Invariant 17, after DeleteRecords up to the middle of a batch."""
        subject, partition = await self.set_up()
        subject.replicas.delete_before(partition, 3)
        assert await offsets(subject, NOW_MS - 200) == (0, 3, NOW_MS - 100, 0)
        assert await offsets(subject, 0) == (0, 3, NOW_MS - 100, 0)

    async def set_up(self) -> tuple[Broker, Partition]:
        subject = broker()
        partition = await create_topic(subject)
        for n, age in enumerate((300, 100, 200)):
            write(subject, partition, b"%d" % n, b"x", timestamp_ms=NOW_MS - age)
        return subject, partition

    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [
            (-1, (0, 6, -1, 0)),
            (-2, (0, 0, -1, 0)),
            (-3, (0, 2, NOW_MS - 100, 0)),  # the largest timestamp is in the middle
            (-4, (0, 0, -1, 0)),
            (-5, (0, -1, -1, -1)),  # nothing is stored remotely
            (-6, (0, -1, -1, -1)),
            (-7, (errors.UnsupportedVersion.code, -1, -1, -1)),
            (0, (0, 0, NOW_MS - 300, 0)),
            (NOW_MS - 299, (0, 2, NOW_MS - 100, 0)),
            (NOW_MS, (0, -1, -1, -1)),  # no record is that young
        ],
    )
    async def test_timestamp_finds_the_offset(self, timestamp: int, expected: tuple[int, ...]):
        subject, _ = await self.set_up()
        assert await offsets(subject, timestamp) == expected

    async def test_read_committed_ends_at_the_last_stable_offset(self):
        subject, partition = await self.set_up()
        write(
            subject,
            partition,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        assert (await offsets(subject, -1))[1] == 7
        assert (await offsets(subject, -1, isolation_level=1))[1] == 6

    async def test_offset_is_never_below_the_log_start(self):
        subject, partition = await self.set_up()
        subject.replicas.delete_before(partition, 4)
        assert await offsets(subject, -2) == (0, 4, -1, 0)
        error, offset, _, _ = await offsets(subject, -3)
        assert (error, offset == -1 or offset >= 4) == (0, True)
        error, offset, _, _ = await offsets(subject, 0)
        assert (error, offset) == (0, 4)

    async def test_current_leader_epoch_is_checked(self):
        subject, _ = await self.set_up()
        await subject.lead_again("t")
        assert (await offsets(subject, -1, epoch=0))[0] == errors.FencedLeaderEpoch.code
        assert (await offsets(subject, -1, epoch=2))[0] == errors.UnknownLeaderEpoch.code
        assert await offsets(subject, -1, epoch=1) == (0, 6, -1, 1)

    async def test_end_offset_is_not_available_before_the_epoch_commits(self):
        """KIP-207: the end offset that consumers see must not go back with a new leader."""
        subject = broker()
        partition = await create_topic(subject, replicas=(1, 2))
        write(subject, partition)
        await subject.lead_again("t")
        assert (await offsets(subject, -1))[0] == errors.OffsetNotAvailable.code
        assert (await offsets(subject, -2))[0] == 0
        assert (await offsets(subject, 0))[0] == errors.OffsetNotAvailable.code
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=1)
        assert (await offsets(subject, -1))[:2] == (0, 1)

    async def test_committed_record_is_there_before_the_epoch_commits(self):
        """Kafka's rule: a timestamp whose record consumers may read already has its offset."""
        subject = broker()
        partition = await create_topic(subject, replicas=(1, 2))
        write(subject, partition)
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=1)
        write(subject, partition)
        await subject.lead_again("t")
        assert (await offsets(subject, 0))[:2] == (0, 0)
        assert (await offsets(subject, -1))[0] == errors.OffsetNotAvailable.code

    async def test_unknown_and_repeated_partitions_are_errors(self):
        subject = broker()
        assert (await offsets(subject, -1))[0] == errors.UnknownTopicOrPartition.code
        await create_topic(subject)
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=0, timestamp=-1)
        answer = await subject.call(
            ListOffsetsRequest(replica_id=-1, topics=[topic(name="t", partitions=[partition] * 2)])
        )
        codes = [p.error_code for p in answer.topics[0].partitions]
        assert codes == [errors.InvalidRequest.code] * 2


@pytest.mark.parametrize(
    ("epoch", "current_epoch", "expected"),
    [
        (0, -1, (0, 0, 2)),
        (1, -1, (0, 0, 2)),  # an epoch in between: the epoch before it
        (2, -1, (0, 2, 3)),  # the current epoch ends at the log end
        (3, -1, (0, -1, -1)),
        (-1, -1, (0, -1, -1)),
        (0, 1, (errors.FencedLeaderEpoch.code, -1, -1)),
        (0, 3, (errors.UnknownLeaderEpoch.code, -1, -1)),
    ],
)
async def test_end_offset_of_an_epoch_is_returned(
    epoch: int, current_epoch: int, expected: tuple[int, int, int]
):
    """Invariant 27."""
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a", b"b")
    change = r.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), leader=1)
    await subject.publish(change, change)
    write(subject, partition, b"c")
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    answer = await subject.call(
        OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                topic(
                    topic="t",
                    partitions=[
                        topic.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=current_epoch, leader_epoch=epoch
                        )
                    ],
                )
            ],
        )
    )
    (result,) = answer.topics[0].partitions
    assert (result.error_code, result.leader_epoch, result.end_offset) == expected


@pytest.mark.parametrize(
    ("topic", "offset", "expected"),
    [
        ("t", 2, (0, 2)),
        ("t", 0, (0, 0)),
        ("t", -1, (0, 4)),  # everything
        ("t", 5, (errors.OffsetOutOfRange.code, -1)),
        ("t", -2, (errors.OffsetOutOfRange.code, -1)),
        ("nope", 0, (errors.UnknownTopicOrPartition.code, -1)),
        ("compacted", 0, (errors.PolicyViolation.code, -1)),
        ("kept", 0, (errors.NONE, 0)),
        ("__consumer_offsets", 0, (errors.InvalidTopicException.code, -1)),
    ],
)
async def test_records_are_deleted(topic: str, offset: int, expected: tuple[int, int]):
    """Invariant 39."""
    subject = broker()
    partition = await create_topic(subject)
    await create_topic(subject, "__consumer_offsets")
    await create_topic(subject, "compacted", cleanup_delete=False, cleanup_compact=True)
    await create_topic(subject, "kept", cleanup_delete=False)  # cleanup.policy is empty
    write(subject, partition, b"a", b"b", b"c", b"d")
    Topic = DeleteRecordsRequest.DeleteRecordsTopic
    answer = await subject.call(
        DeleteRecordsRequest(
            timeout_ms=1,
            topics=[
                Topic(
                    name=topic,
                    partitions=[Topic.DeleteRecordsPartition(partition_index=0, offset=offset)],
                )
            ],
        )
    )
    (result,) = answer.topics[0].partitions
    assert (result.error_code, result.low_watermark) == expected
    assert partition.log.log_start == (expected[1] if expected[0] == 0 else 0)


async def test_deletion_in_one_directory_does_not_fail_with_another_directory():
    """Invariant 39. The whole request failed if one directory could not store its log starts."""
    disks = [SimDisk(), SimDisk()]
    subject = broker(disks=disks)
    partitions = [await create_topic(subject, name) for name in ("t", "u")]
    assert [partition.log.disk for partition in partitions] == disks
    for partition in partitions:
        write(subject, partition, b"a", b"b")
    disks[1].fail_at("write", OSError(errno.EIO, "broken"), path="log-start-offset")
    Topic = DeleteRecordsRequest.DeleteRecordsTopic
    deletion = Topic.DeleteRecordsPartition(partition_index=0, offset=1)
    topics = [Topic(name=name, partitions=[deletion]) for name in ("t", "u")]
    answer = await subject.call(DeleteRecordsRequest(timeout_ms=1, topics=topics))
    results = [result for topic in answer.topics for result in topic.partitions]
    expected = [(errors.NONE, 1), (errors.KafkaStorageError.code, -1)]
    assert [(each.error_code, each.low_watermark) for each in results] == expected
    assert b"t 0 1" in disks[0].after_kill().read("log-start-offset-checkpoint")


async def test_deletion_waits_for_eligible_leader_replica():
    """Invariant 39: the replica would bring the records back if it were elected."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2), isr=(1,))
    write(subject, partition, b"a", b"b")
    change = partial(r.PartitionChangeRecord, partition_id=0, topic_id=topic_id("t"))
    Topic = DeleteRecordsRequest.DeleteRecordsTopic
    deletion = Topic.DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(timeout_ms=1, topics=[Topic(name="t", partitions=[deletion])])

    async def delete() -> tuple[int, int]:
        (result,) = (await subject.call(request)).topics[0].partitions
        return result.error_code, result.low_watermark

    await subject.publish(change(eligible_leader_replicas=[2]))
    assert (await delete())[0] == errors.RequestTimedOut.code
    await subject.publish(change(eligible_leader_replicas=[]))
    assert await delete() == (errors.NONE, 2)


@pytest.mark.parametrize("change", [{"replicas": [1], "isr": [1]}, {"isr": [1]}])
async def test_deletion_ends_once_the_late_replica_no_longer_counts(
    autojump_clock: Any, change: dict[str, Any]
):
    """Invariant 39: no fetch of another follower follows, and the next check comes much later."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        write(subject, partition, b"a", b"b")
        subject.replicas.on_follower_fetched(partition, 2, offset=2, log_start=0, broker_epoch=-1)

        assert subject.replicas.delete_before(partition, 2) == 0

        @nursery.start_soon
        async def publish() -> None:
            await trio.sleep(1)
            await subject.publish(
                r.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), **change)
            )

        assert await subject.replicas.wait_deleted(partition, 2, 9.0) == 2
        assert trio.current_time() == pytest.approx(1)
        nursery.cancel_scope.cancel()


async def test_producer_ids_are_unique():
    """Invariant 47."""
    subject = broker()
    answers = [
        await subject.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
        for _ in range(25)
    ]
    assert [(a.error_code, a.producer_id, a.producer_epoch) for a in answers] == [
        (0, n, 0) for n in range(25)
    ]


async def test_empty_transactional_id_is_refused():
    answer = await broker().call(
        InitProducerIdRequest(transactional_id="", transaction_timeout_ms=0)
    )
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        errors.InvalidRequest.code,
        -1,
        -1,
    )


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (None, {("t", 0), ("t", 1), ("u", 0)}),
        ([("t", [1]), ("nope", [0])], {("t", 1)}),
        ([], set()),
    ],
)
async def test_log_directories_are_described(
    topic_filter: list[tuple[str, list[int]]] | None, expected: set[Any]
):
    subject = broker()
    await create_topic(subject, partitions=2)
    write(subject, await create_topic(subject, "u"), b"x" * 100)
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    topics = None
    if topic_filter is not None:
        topics = [topic(topic=name, partitions=indexes) for name, indexes in topic_filter]
    answer = await subject.call(DescribeLogDirsRequest(topics=topics))
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, "/data")
    assert directory.total_bytes >= directory.usable_bytes > 0
    sizes = {
        (t.name, p.partition_index): p.partition_size
        for t in directory.topics
        for p in t.partitions
    }
    assert set(sizes) == expected
    assert all((size > 100) == (name == "u") for (name, _), size in sizes.items())


async def test_leader_has_no_lag_in_its_log_directory():
    """Kafka counts the lag of a leader up to the high watermark, too."""
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"x")
    partition.log.high_watermark = 0
    (directory,) = (await subject.call(DescribeLogDirsRequest(topics=None))).results
    assert directory.topics[0].partitions[0].offset_lag == 0


async def test_offline_log_directory_is_described_as_such():
    subject = broker()
    await create_topic(subject)
    subject.disk.failed = OSError("gone")
    (directory,) = (await subject.call(DescribeLogDirsRequest(topics=None))).results
    assert (directory.error_code, directory.topics) == (errors.KafkaStorageError.code, [])


async def test_producers_are_described():
    subject = broker()
    partition = await create_topic(subject)
    for sequence in (0, 1):
        write(subject, partition, producer_id=7, producer_epoch=2, base_sequence=sequence)
    topic = DescribeProducersRequest.TopicRequest
    answer = await subject.call(
        DescribeProducersRequest(topics=[topic(name="t", partition_indexes=[0, 1])])
    )
    present, missing = answer.topics[0].partitions
    (state,) = present.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (7, 2, 1)
    assert (state.last_timestamp, state.current_txn_start_offset) == (NOW_MS, -1)
    assert missing.error_code == errors.UnknownTopicOrPartition.code


async def test_coordinator_log_reads_what_it_appended():
    subject = broker()
    await create_topic(subject)
    log, where = CoordinatorLog(subject.replicas, subject.wall), TopicPartition("t", 0)
    batches = [one_batch(b"a", b"b"), one_batch(b"c")]
    assert [log.append(where, batch) for batch in batches] == [2, 3]
    await log.wait_committed(where, 3)
    assert (log.bounds(where), log.high_watermark(where)) == ((0, 3), 3)
    data = await log.read(where, 0)
    assert [h.base_offset for _, h in header.headers(data)] == [0, 2]
    assert len(await log.read(where, 3)) == 0
    with pytest.raises(errors.UnknownTopicOrPartition):
        log.append(TopicPartition("nope", 0), batches[0])
