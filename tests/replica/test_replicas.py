"""Partitions follow the metadata: they are created, change role and settings, are removed."""

import errno
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.log.config import LogConfig
from kwire.records import header
from kwire.replica.partition import UNCOMMITTED_MAX, FetchIsolation, Partition, ProduceResult
from simulation.disk import PLENTY
from tests.support.handlers.broker import NODE, NOW_MS, Broker, broker, one_batch, topic_id
from tests.support.replica.waits import wait_readable


async def create_partition(subject: Broker, name: str = "t", **settings: Any) -> Partition:
    """Create a topic; return its partition 0."""
    partition = await subject.create(name, **settings)
    assert partition is not None
    return partition


def write(subject: Broker, partition: Partition) -> int:
    return append(subject, partition).end_offset


def append(subject: Broker, partition: Partition) -> ProduceResult:
    batch = one_batch()
    return subject.replicas.append(partition, batch, header.parse(batch), -1, NOW_MS)


async def test_broker_hosts_only_its_own_partitions():
    subject = broker()
    await create_partition(subject, "mine", partitions=3)
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
async def test_request_for_a_partition_not_hosted_here_gets_its_error(
    topic: str, partition: int, expected: type[Exception]
):
    subject = broker()
    await create_partition(subject, "mine")
    await subject.create("others", replicas=(2,), leader=2)
    if topic == "broken":
        subject.disk.fail_at("mkdir", OSError("no space"))
        await subject.create("broken")
    with pytest.raises(expected):
        subject.replicas.partitions.get(topic, partition)


async def test_partition_refused_by_a_full_disk_is_created_once_there_is_room():
    """Invariant 88: the next request for it creates it, without a restart."""
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


async def test_unknown_topic_id_has_an_error_of_its_own():
    with pytest.raises(errors.UnknownTopicId):
        broker().replicas.partitions.get_by_id(b"?" * 16, 0)


async def test_new_leader_epoch_starts_at_the_log_end():
    subject = broker()
    partition = await create_partition(subject)
    write(subject, partition)
    await subject.lead_again("t")
    write(subject, partition)
    assert partition.log.epochs.entries() == [(0, 0), (1, 1)]
    assert partition.leader is not None
    assert partition.leader.epoch_start == 1
    assert partition.high_watermark == 2


async def test_subscribers_are_notified_of_roles():
    subject = broker()
    changes: list[tuple[str, bool]] = []
    subject.replicas.roles.subscribe(lambda p: changes.append((p.topic, p.leader is not None)))
    await create_partition(subject, replicas=(1, 2))
    await subject.lead_again("t", leader=2)
    await subject.lead_again("t")
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert changes == [("t", True), ("t", False), ("t", True), ("t", False)]


async def test_log_of_a_reassigned_replica_is_deleted():
    subject = broker()
    await create_partition(subject, replicas=(1, 2))
    await subject.publish(
        r.PartitionChangeRecord(
            partition_id=0, topic_id=topic_id("t"), leader=2, replicas=[2], isr=[2]
        )
    )
    assert subject.logs.get("t", 0) is None
    with pytest.raises(errors.NotLeaderOrFollower):
        subject.replicas.partitions.get("t", 0)


@pytest.mark.parametrize("resource", [(2, "t"), (4, ""), (4, "1")])
async def test_changed_settings_apply_to_a_running_partition(resource: tuple[int, str]):
    subject = broker()
    partition = await create_partition(subject, replicas=(1, 2), isr=(1,))
    assert partition.leader is not None
    subject.configs["t"] = LogConfig(min_insync_replicas=2, max_message_bytes=7)
    await subject.publish(
        r.ConfigRecord(resource_type=resource[0], resource_name=resource[1], name="x", value="y")
    )
    assert partition.config.max_message_bytes == 7
    assert partition.leader.under_min_isr


async def test_settings_of_other_topics_do_not_change():
    subject = broker()
    partition = await create_partition(subject)
    subject.configs["t"] = LogConfig(max_message_bytes=7)
    await subject.publish(
        r.ConfigRecord(resource_type=2, resource_name="other", name="x", value="y")
    )
    assert partition.config.max_message_bytes != 7


async def test_isr_from_the_metadata_advances_the_high_watermark():
    """Records that a smaller ISR has committed wake the producers that wait for them."""
    subject = broker()
    partition = await create_partition(subject, replicas=(1, 2))
    end = write(subject, partition)
    assert partition.high_watermark == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.replicas.wait_committed, partition, end, 1e6)
        await trio.testing.wait_all_tasks_blocked()
        await subject.publish(
            r.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), isr=[1])
        )
    assert partition.high_watermark == 1


async def test_records_that_wait_for_replicas_for_hours_take_no_more_memory():
    """The leader takes records with acks=1 although too few replicas are in sync."""
    subject = broker()
    partition = await create_partition(subject, replicas=(1, 2), isr=(1,), min_insync_replicas=2)
    batch = one_batch()
    size_bytes = 0
    for _ in range(UNCOMMITTED_MAX + 100):
        parsed = header.parse(batch)
        size_bytes += subject.replicas.append(partition, batch, parsed, 1, NOW_MS).size_bytes
    assert partition.high_watermark == 0
    assert len(partition.uncommitted) == UNCOMMITTED_MAX
    assert sum(size for _, size in partition.uncommitted) == size_bytes
    assert partition.uncommitted[-1][0] == partition.log.end_offset


@pytest.mark.parametrize(
    ("leaders", "expected"), [((1,), None), ((2, 1), errors.NotLeaderOrFollower)]
)
async def test_producer_waits_on_while_its_leader_goes_on_in_the_next_epoch(
    leaders: tuple[int, ...], expected: type[Exception] | None
):
    """An error would make a producer without idempotence send its records twice."""
    subject = broker()
    partition = await create_partition(subject, replicas=(1, 2, 3))
    produced = append(subject, partition)
    answers: list[type[Exception] | None] = []

    async def wait() -> None:
        try:
            await subject.replicas.wait_acknowledged(partition, produced, -1, math.inf)
        except errors.KafkaError as error:
            answers.append(type(error))
        else:
            answers.append(None)

    def lead(leader: int) -> r.PartitionChangeRecord:
        return r.PartitionChangeRecord(
            partition_id=0, topic_id=topic_id("t"), leader=leader, replicas=[1, 2], isr=[1, 2]
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await subject.publish(*map(lead, leaders))
        await trio.testing.wait_all_tasks_blocked()
        assert answers == ([] if expected is None else [expected])
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=-1)
    assert answers == [expected]


async def test_records_of_a_slow_directory_count_once_they_are_written(autojump_clock: Any):
    """Records in the queue of a slow disk are neither acknowledged nor read."""
    subject = broker()
    partition = await create_partition(subject)
    log = partition.log
    log.writer.on_queued = lambda: None
    subject.disk.slow = True
    produced = append(subject, partition)
    assert (log.end_offset, log.writer.written_offset, partition.high_watermark) == (1, 0, 0)

    async def recover() -> None:
        await trio.sleep(3)
        log.write_queued()
        subject.replicas.on_log_written(log)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        for acks in (1, -1):
            deadline = trio.current_time() + 10
            nursery.start_soon(
                subject.replicas.wait_acknowledged, partition, produced, acks, deadline
            )
        await wait_readable(
            subject.replicas.fetch_waits, partition, FetchIsolation.HIGH_WATERMARK, 10
        )
    assert trio.current_time() == pytest.approx(3)
    assert partition.high_watermark == 1


async def test_waiting_producer_gets_a_storage_error_if_the_directory_fails():
    """Invariants 88 and 89: no acknowledgement; every waiter gets a storage error."""
    subject = broker()
    partition = await create_partition(subject)
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


async def test_waiting_producer_gets_a_storage_error_if_the_next_epoch_cannot_begin():
    """The wait ends although the partition could not take its new role."""
    subject = broker()
    partition = await create_partition(subject, replicas=(1, 2))
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
            subject.disk.fail_at("open", OSError(errno.EISDIR, "a folder"), path="epoch")
            await subject.lead_again("t")
    assert answers == [errors.KafkaStorageError]


async def test_idle_broker_runs_no_task(autojump_clock: Any):
    """Ten partitions, three waiting fetches: no task runs until their deadline."""
    subject = broker()
    partition = await create_partition(subject, partitions=10)
    steps = 0

    class Counter(trio.abc.Instrument):
        def before_task_step(self, task: Any) -> None:
            nonlocal steps
            steps += 1

    counter = Counter()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(
                wait_readable, subject.replicas.fetch_waits, partition, FetchIsolation.STABLE, 3600
            )
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(3599)
        trio.lowlevel.remove_instrument(counter)
    assert steps < 10
    assert subject.replicas.node == NODE


async def test_traffic_is_counted_by_topic():
    subject = broker()
    partition = await create_partition(subject, partitions=2)
    write(subject, partition)
    write(subject, subject.replicas.partitions.get("t", 1))
    lines = subject.replicas.metrics.text().splitlines()
    size = len(one_batch())
    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 2' in lines
    assert f'kafka_server_brokertopicmetrics_bytesin_total{{topic="t"}} {2 * size}' in lines
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert 'topic="t"' not in subject.replicas.metrics.text()


class TestTurns:
    """Changes of many partitions are applied in slices; other tasks run in between."""

    async def turns(self, subject: Broker, *records: Any) -> int:
        """Return the number of turns of another task while records are applied.

        The clock advances a tenth of a millisecond each time it is read.
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

    async def test_other_tasks_run_while_a_large_topic_is_deleted(self):
        subject = broker()
        await create_partition(subject, partitions=400)
        assert await self.turns(subject, r.RemoveTopicRecord(topic_id=topic_id("t"))) >= 15
        assert len(subject.replicas.partitions) == 0

    async def test_other_tasks_run_while_settings_of_all_topics_change(self):
        subject = broker()
        await create_partition(subject, partitions=400)
        change = r.ConfigRecord(resource_type=4, resource_name="", name="x", value="y")
        assert await self.turns(subject, change) >= 15

    async def test_other_tasks_run_while_roles_change(self):
        subject = broker()
        await create_partition(subject, partitions=400, replicas=(1, 2))
        changes = [
            r.PartitionChangeRecord(partition_id=n, topic_id=topic_id("t"), leader=2)
            for n in range(400)
        ]
        assert await self.turns(subject, *changes) >= 15


async def test_replica_that_comes_back_during_a_flush_is_created_after_it():
    """No request has to ask for it: its leader waits for it in the ISR."""
    subject = broker()
    flushed = trio.Event()

    async def hang(call: Callable[[], None]) -> None:
        await flushed.wait()
        call()

    async with trio.open_nursery() as nursery:
        await nursery.start(subject.logs.run)
        old = await create_partition(subject)
        write(subject, old)
        subject.logs.threads.stand_in = hang
        nursery.start_soon(subject.logs.flush, old.log)
        await trio.testing.wait_all_tasks_blocked()
        for replicas in ([2], [NODE, 2]):
            change = r.PartitionChangeRecord(
                partition_id=0, topic_id=topic_id("t"), replicas=replicas, leader=2, isr=[2]
            )
            await subject.publish(change)
        assert subject.replicas.partitions.offline_count == 1
        flushed.set()
        await trio.testing.wait_all_tasks_blocked()
        new = subject.replicas.partitions.find("t", 0)
        assert new is not None
        assert new.log is not old.log
        assert new.log.end_offset == 0
        nursery.cancel_scope.cancel()


async def test_log_of_an_offline_partition_is_deleted_with_its_topic():
    """A partition whose role failed, because its epochs file is a folder, is deleted."""
    subject = broker()
    subject.disk.fail_at("open", OSError(errno.EISDIR, "a folder"), path="epoch")
    await subject.create("t")
    assert subject.replicas.partitions.offline_count == 1
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    assert subject.logs.get("t", 0) is None
