"""Following the metadata: partitions come, change their roles and settings, and go."""

import errno
import itertools
import math
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.log.config import LogConfig
from kwire.records import header
from kwire.replica.partition import Partition, Produced
from kwire.replica.purgatory import FetchIsolation
from kwire.simulation.disk import PLENTY
from tests.support.handlers.broker import NODE, NOW_MS, Broker, broker, one_batch, topic_id


async def made(subject: Broker, name: str = "t", **settings: Any) -> Partition:
    found = await subject.create(name, **settings)
    assert found is not None
    return found


def write(subject: Broker, partition: Partition) -> int:
    return append(subject, partition).end_offset


def append(subject: Broker, partition: Partition) -> Produced:
    batch = one_batch()
    return subject.replicas.append(partition, batch, header.parse(batch), -1, NOW_MS)


async def test_only_partitions_of_this_broker_are_held():
    subject = broker()
    await made(subject, "mine", partitions=3)
    await subject.create("others", replicas=(2, 3), leader=2)
    partitions = subject.replicas.partitions
    assert len(partitions) == 3
    assert partitions.get("mine", 2) is partitions.get_by_id(topic_id("mine"), 2)


@pytest.mark.parametrize(
    ("topic", "partition", "expected"),
    [
        ("nope", 0, errors.UnknownTopicOrPartition),
        ("mine", 1, errors.UnknownTopicOrPartition),
        ("others", 0, errors.NotLeaderOrFollower),
        ("broken", 0, errors.KafkaStorageError),
    ],
)
async def test_why_there_is_none(topic: str, partition: int, expected: type[Exception]):
    subject = broker()
    await made(subject, "mine")
    await subject.create("others", replicas=(2,), leader=2)
    if topic == "broken":
        subject.disk.fail_at("mkdir", OSError("no space"))
        await subject.create("broken")
    with pytest.raises(expected):
        subject.replicas.partitions.get(topic, partition)


async def test_partition_that_found_no_room_is_made_when_there_is():
    """Invariant 88: without a restart, by the next request for it."""
    subject = broker()
    subject.disk.capacity = 1
    await subject.create("t")
    for _ in range(2):
        with pytest.raises(errors.KafkaStorageError):
            subject.replicas.partitions.get("t", 0)
    assert subject.replicas.partitions.offline_count == 1
    subject.disk.capacity = PLENTY
    write(subject, subject.replicas.partitions.get("t", 0))
    assert subject.replicas.partitions.offline_count == 0


async def test_unknown_ids_are_not_unknown_names():
    with pytest.raises(errors.UnknownTopicId):
        broker().replicas.partitions.get_by_id(b"?" * 16, 0)


async def test_a_new_epoch_begins_where_the_log_ends():
    subject = broker()
    partition = await made(subject)
    write(subject, partition)
    await subject.lead_again("t")
    write(subject, partition)
    assert partition.log.epochs.entries() == [(0, 0), (1, 1)]
    assert partition.leader is not None
    assert partition.leader.epoch_start == 1
    assert partition.high_watermark == 2


async def test_a_leader_without_copies_says_so_once_a_topic(caplog: pytest.LogCaptureFixture):
    subject = broker()
    await made(subject, "alone", partitions=2)
    await subject.create("followed", replicas=(2, 1), leader=2)
    assert caplog.records == []
    await made(subject, "copied", partitions=3, replicas=(1, 2))
    (told,) = caplog.records
    assert told.getMessage().endswith("topic=copied replicas=2")


async def test_roles_are_told_of():
    subject = broker()
    seen: list[tuple[str, bool]] = []
    subject.replicas.roles.subscribe(lambda p: seen.append((p.topic, p.leader is not None)))
    await made(subject, replicas=(1, 2))
    await subject.lead_again("t", leader=2)
    await subject.lead_again("t")
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert seen == [("t", True), ("t", False), ("t", True), ("t", False)]


async def test_a_replica_that_is_taken_away_goes_with_its_data():
    subject = broker()
    await made(subject, replicas=(1, 2))
    await subject.publish(
        r.PartitionChangeRecord(
            partition_id=0, topic_id=topic_id("t"), leader=2, replicas=[2], isr=[2]
        )
    )
    assert subject.logs.get("t", 0) is None
    with pytest.raises(errors.NotLeaderOrFollower):
        subject.replicas.partitions.get("t", 0)


@pytest.mark.parametrize("resource", [(2, "t"), (4, ""), (4, "1")])
async def test_settings_change_while_running(resource: tuple[int, str]):
    subject = broker()
    partition = await made(subject, replicas=(1, 2), isr=(1,))
    assert partition.leader is not None
    subject.configs["t"] = LogConfig(min_insync_replicas=2, max_message_bytes=7)
    await subject.publish(
        r.ConfigRecord(resource_type=resource[0], resource_name=resource[1], name="x", value="y")
    )
    assert partition.config.max_message_bytes == 7
    assert partition.leader.under_min_isr


async def test_other_topics_keep_their_settings():
    subject = broker()
    partition = await made(subject)
    subject.configs["t"] = LogConfig(max_message_bytes=7)
    await subject.publish(
        r.ConfigRecord(resource_type=2, resource_name="other", name="x", value="y")
    )
    assert partition.config.max_message_bytes != 7


async def test_metadata_settles_the_isr():
    """Records that the shrunken ISR has committed wake the producers that wait for them."""
    subject = broker()
    partition = await made(subject, replicas=(1, 2))
    end = write(subject, partition)
    assert partition.high_watermark == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.replicas.wait_committed, partition, end, 1e6)
        await trio.testing.wait_all_tasks_blocked()
        await subject.publish(
            r.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), isr=[1])
        )
    assert partition.high_watermark == 1


async def test_a_slow_directory(autojump_clock: Any):
    """Records that are reserved but not written do not count until they are."""
    subject = broker()
    partition = await made(subject)
    log = partition.log
    log.writer.on_queued = lambda: None
    subject.disk.slow = True
    produced = append(subject, partition)
    assert (log.end_offset, log.writer.written_offset, partition.high_watermark) == (1, 0, 0)

    async def recover() -> None:
        await trio.sleep(3)
        log.settle()
        subject.replicas.on_log_written(log)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        for acks in (1, -1):
            deadline = trio.current_time() + 10
            nursery.start_soon(
                subject.replicas.wait_acknowledged, partition, produced, acks, deadline
            )
        await subject.replicas.fetch_waits.wait_readable(
            [partition], missing_bytes=1, upto=FetchIsolation.HIGH_WATERMARK, timeout_s=10
        )
    assert trio.current_time() == pytest.approx(3)
    assert partition.high_watermark == 1


async def test_a_directory_that_fails_takes_its_partitions_with_it():
    """Invariants 88 and 89: no acknowledgement; every waiter gets a storage error."""
    subject = broker()
    partition = await made(subject)
    write(subject, partition)
    answers: list[type[Exception]] = []

    async def wait() -> None:
        try:
            await subject.replicas.wait_committed(partition, 5, 1e6)
        except errors.KafkaError as error:
            answers.append(type(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        subject.disk.failed = OSError("io")
        subject.replicas.partitions.on_directory_failed(subject.logs.directories[0])
    assert answers == [errors.KafkaStorageError]
    with pytest.raises(errors.KafkaStorageError):
        subject.replicas.partitions.get("t", 0)


async def test_producer_gets_a_storage_error_if_the_next_epoch_cannot_begin():
    """The wait ends although the role fails before it is taken."""
    subject = broker()
    partition = await made(subject, replicas=(1, 2))
    end = write(subject, partition)
    answers: list[type[Exception]] = []

    async def wait() -> None:
        try:
            await subject.replicas.wait_committed(partition, end, math.inf)
        except errors.KafkaError as error:
            answers.append(type(error))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            subject.disk.fail_at("open", OSError(errno.EMFILE, "too many"), path="epoch", times=2)
            await subject.lead_again("t")
    assert answers == [errors.KafkaStorageError]


async def test_an_idle_broker_sleeps(autojump_clock: Any):
    """Ten partitions, three waiting fetches: nothing runs until their time is up."""
    subject = broker()
    partition = await made(subject, partitions=10)
    steps = 0

    class Counter(trio.abc.Instrument):
        def before_task_step(self, task: Any) -> None:
            nonlocal steps
            steps += 1

    counter = Counter()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(
                lambda: subject.replicas.fetch_waits.wait_readable(
                    [partition], missing_bytes=1, upto=FetchIsolation.STABLE, timeout_s=3600
                )
            )
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(3599)
        trio.lowlevel.remove_instrument(counter)
    assert steps < 10
    assert subject.replicas.node == NODE


async def test_traffic_is_counted_by_topic():
    subject = broker()
    partition = await made(subject, partitions=2)
    write(subject, partition)
    write(subject, subject.replicas.partitions.get("t", 1))
    lines = subject.replicas.metrics.text().splitlines()
    size = len(one_batch())
    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 2' in lines
    assert f'kafka_server_brokertopicmetrics_bytesin_total{{topic="t"}} {2 * size}' in lines
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert 'topic="t"' not in subject.replicas.metrics.text()


class TestTurns:
    """Publications about many partitions are taken up in slices: others have their turns."""

    async def turns(self, subject: Broker, *records: Any) -> int:
        """Count the turns that another task has while a publication is applied.

        The clock goes on by a tenth of a millisecond each time it is read.
        """
        ticks = itertools.count()
        subject.replicas.applier.now = lambda: next(ticks) / 10_000
        turns = 0
        async with trio.open_nursery() as nursery:

            async def count() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(count)
            await subject.publish(*records)
            nursery.cancel_scope.cancel()
        return turns

    async def test_when_a_large_topic_is_deleted(self):
        subject = broker()
        await made(subject, partitions=400)
        assert await self.turns(subject, r.RemoveTopicRecord(topic_id=topic_id("t"))) >= 15
        assert len(subject.replicas.partitions) == 0

    async def test_when_settings_of_all_topics_change(self):
        subject = broker()
        await made(subject, partitions=400)
        change = r.ConfigRecord(resource_type=4, resource_name="", name="x", value="y")
        assert await self.turns(subject, change) >= 15

    async def test_when_roles_change(self):
        subject = broker()
        await made(subject, partitions=400, replicas=(1, 2))
        changes = [
            r.PartitionChangeRecord(partition_id=n, topic_id=topic_id("t"), leader=2)
            for n in range(400)
        ]
        assert await self.turns(subject, *changes) >= 15


async def test_topic_whose_partition_could_not_be_led_takes_its_files_along():
    """A partition that found no descriptor for its role is deleted like any other."""
    subject = broker()
    subject.disk.fail_at("open", OSError(errno.EMFILE, "too many"), path="epoch", times=2)
    await subject.create("t")
    assert subject.replicas.partitions.offline_count == 1
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert subject.logs.get("t", 0) is None
