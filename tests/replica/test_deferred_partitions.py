"""Partitions that are created after their topic: most of a large topic, all of a full disk."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.log.disk_health import RESERVE_BYTES
from simulation.disk import PLENTY
from tests.support.handlers.broker import Broker, broker, topic_id

MANY = 50
AT_ONCE = 8


@asynccontextmanager
async def running() -> AsyncIterator[Broker]:
    """Run a broker that creates most partitions in the background.

    On a slow machine the background task gets a turn while a topic is created, so tests that expect
    partitions to be missing hold the clock.
    """
    subject = broker()
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        yield subject
        nursery.cancel_scope.cancel()


def directories(subject: Broker, name: str) -> int:
    return sum(e.name.rpartition("-")[0] == name for e in subject.disk.entries())


async def test_all_partitions_are_created_in_the_background(autojump_clock: MockClock) -> None:
    async with running() as subject:
        await subject.create("t", partitions=MANY)
        assert len(subject.replicas.partitions) == AT_ONCE
        await wait_all_tasks_blocked()
        assert len(subject.replicas.partitions) == MANY == directories(subject, "t")
        assert all(p.leader is not None for p in subject.replicas.partitions)


async def test_requested_partition_is_created_at_once(mock_clock: MockClock) -> None:
    async with running() as subject:
        await subject.create("t", partitions=MANY)
        partitions = subject.replicas.partitions
        by_name, by_id = partitions.get("t", 30), partitions.get_by_id(topic_id("t"), 7)
        later = partitions.get_by_id(topic_id("t"), MANY - 1)
        assert by_name.leader is not None
        assert by_name is subject.replicas.partitions.get("t", 30)
        assert later.partition == MANY - 1
        assert by_id.partition == 7
        assert len(subject.replicas.partitions) == AT_ONCE + 2
        with pytest.raises(errors.UnknownTopicOrPartition):
            subject.replicas.partitions.get("t", MANY)
        await wait_all_tasks_blocked()
        assert len(subject.replicas.partitions) == MANY
        assert by_name is subject.replicas.partitions.get("t", 30)


async def test_late_created_partition_has_the_role_of_the_newest_metadata(
    mock_clock: MockClock,
) -> None:
    async with running() as subject:
        await subject.create("t", partitions=MANY)
        change = r.PartitionChangeRecord(partition_id=20, topic_id=topic_id("t"), leader=1)
        await subject.publish(change)
        assert subject.replicas.partitions.get("t", 20).leader_epoch == 1


async def test_partitions_of_a_topic_deleted_meanwhile_are_not_created(
    mock_clock: MockClock,
) -> None:
    async with running() as subject:
        await subject.create("t", partitions=MANY)
        await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
        await wait_all_tasks_blocked()
        assert len(subject.replicas.partitions) == 0
        assert directories(subject, "t") == 0
        await subject.create("t", partitions=MANY, identity=b"another topic id")
        await wait_all_tasks_blocked()
        assert len(subject.replicas.partitions) == MANY


async def test_failure_to_create_a_partition_is_a_storage_error_of_it_alone(
    mock_clock: MockClock,
) -> None:
    async with running() as subject:
        await subject.create("t", partitions=AT_ONCE + 1)
        subject.disk.fail_at("mkdir", OSError("no space"))
        with pytest.raises(errors.KafkaStorageError):
            subject.replicas.partitions.get("t", AT_ONCE)


async def test_partitions_of_internal_topics_are_created_at_once() -> None:
    """Clients wait for a coordinator as soon as its topic exists."""
    async with running() as subject:
        await subject.create("__consumer_offsets", partitions=MANY)
        assert len(subject.replicas.partitions) == MANY


async def test_all_partitions_are_created_at_once_before_the_background_task_runs() -> None:
    subject = broker()
    await subject.create("t", partitions=MANY)
    assert len(subject.replicas.partitions) == MANY


@pytest.mark.parametrize("leader", [1, 2])
async def test_partitions_of_a_full_disk_are_created_once_there_is_room(
    autojump_clock: MockClock, leader: int
) -> None:
    """Nobody requests a follower's replica, or the partition of a coordinator."""
    async with running() as subject:
        subject.disk.capacity = RESERVE_BYTES // 2
        subject.logs.directories[0].disk.keep_room()
        await subject.create("__consumer_offsets", partitions=MANY, replicas=(1, 2), leader=leader)
        await subject.create("t", partitions=MANY, replicas=(1, 2), leader=leader)
        await trio.sleep(100)
        partitions = subject.replicas.partitions
        assert len(partitions) == 0
        assert partitions.offline_count == 2 * MANY
        subject.disk.capacity = PLENTY
        await trio.sleep(1.5)
        assert len(partitions) == 2 * MANY
        assert partitions.offline_count == 0
        assert all((p.leader is not None) == (leader == 1) for p in partitions)


async def test_partition_is_created_once_there_are_descriptors(autojump_clock: MockClock) -> None:
    async with running() as subject:
        subject.disk.fail_at("mkdir", OSError(errno.EMFILE, "too many open files"))
        await subject.create("t", replicas=(1, 2), leader=2)
        assert subject.replicas.partitions.offline_count == 1
        await trio.sleep(1.5)
        assert subject.replicas.partitions.find("t", 0) is not None
        assert subject.replicas.partitions.offline_count == 0


async def test_partition_of_a_full_disk_is_forgotten_with_its_topic(
    autojump_clock: MockClock,
) -> None:
    async with running() as subject:
        subject.disk.capacity = RESERVE_BYTES // 2
        subject.logs.directories[0].disk.keep_room()
        await subject.create("t", partitions=MANY)
        await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
        subject.disk.capacity = PLENTY
        await trio.sleep(1.5)
        assert len(subject.replicas.partitions) == subject.replicas.partitions.offline_count == 0
