"""Replicas of a broker that starts with a log directory that cannot be read."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.log.config import LogConfig
from kwire.types import DirectoryId
from simulation.disk import SimDisk
from tests.support.handlers.broker import NODE, Broker, broker, topic_id

MANY = 20
PLACES = {"unknown": None, "unassigned": DirectoryId.UNASSIGNED, "lost": DirectoryId.LOST}


def topic(name: str, partition_count: int, directory: bytes | None) -> list[object]:
    """Return the records of a topic with all replicas in one place."""
    return [
        r.TopicRecord(name=name, topic_id=topic_id(name)),
        *(
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id(name),
                replicas=[NODE],
                isr=[NODE],
                leader=NODE,
                leader_epoch=0,
                partition_epoch=0,
                directories=[] if directory is None else [directory],
            )
            for index in range(partition_count)
        ),
    ]


@asynccontextmanager
async def broker_after_restart(
    directory: bytes | None, *, is_broken: bool = True
) -> AsyncIterator[Broker]:
    """Restart a broker with half of a topic's logs in a directory that cannot be read."""
    disks = [SimDisk(), SimDisk()]
    before = broker(disks=disks)
    await before.publish(*topic("t", MANY, directory))
    assert len(before.replicas.partitions) == MANY
    survivors = [disk.after_kill() for disk in disks]
    if is_broken:
        survivors[0].fail_at("entries", OSError(errno.EIO, "input/output error"))
    subject = broker(disks=survivors)
    await subject.logs.open(lambda topic: LogConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        await subject.publish(*topic("t", MANY, directory))
        await wait_all_tasks_blocked()
        yield subject
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("place", PLACES)
async def test_replicas_without_a_log_stay_offline(autojump_clock: MockClock, place: str) -> None:
    """Invariant 89: an empty log in the other directory could lead, and undo what was written."""
    async with broker_after_restart(PLACES[place]) as subject:
        partitions = subject.replicas.partitions
        assert partitions.offline_count == len(partitions) == MANY // 2
        offline = [n for n in range(MANY) if partitions.find("t", n) is None]
        for index in offline:
            with pytest.raises(errors.KafkaStorageError):
                partitions.get("t", index)
        change = r.PartitionChangeRecord(
            partition_id=offline[0], topic_id=topic_id("t"), leader=NODE
        )
        await subject.publish(change)
        assert partitions.find("t", offline[0]) is None


async def test_replicas_without_a_log_are_reported(autojump_clock: MockClock) -> None:
    """The controller then lets another replica lead, and shows this one as offline."""
    reported: set[tuple[bytes, int]] = set()
    async with broker_after_restart(DirectoryId.UNASSIGNED) as subject:
        subject.replicas.partitions.on_log_unreachable = lambda *key: reported.add(key)
        for index in range(MANY):
            if subject.replicas.partitions.find("t", index) is None:
                with pytest.raises(errors.KafkaStorageError):
                    subject.replicas.partitions.get("t", index)
    assert len(reported) == MANY // 2


async def test_new_replicas_get_a_log_in_the_readable_directory(autojump_clock: MockClock) -> None:
    """Topics of after the start, and replicas that were removed and came back since."""
    async with broker_after_restart(DirectoryId.UNASSIGNED) as subject:
        partitions = subject.replicas.partitions
        await subject.publish(*topic("u", MANY, DirectoryId.UNASSIGNED))
        await wait_all_tasks_blocked()
        assert all(partitions.get("u", n).leader is not None for n in range(MANY))
        index = next(n for n in range(MANY) if partitions.find("t", n) is None)
        for replicas in ([2], [NODE, 2]):
            change = r.PartitionChangeRecord(
                partition_id=index, topic_id=topic_id("t"), replicas=replicas, leader=2, isr=[2]
            )
            await subject.publish(change)
        assert partitions.get("t", index).log.end_offset == 0


async def test_missing_logs_are_created_if_all_directories_were_read(
    autojump_clock: MockClock,
) -> None:
    """A topic that was created while the broker was down, or a disk that was replaced."""
    async with broker_after_restart(DirectoryId.UNASSIGNED, is_broken=False) as subject:
        assert len(subject.replicas.partitions) == MANY
        assert subject.replicas.partitions.offline_count == 0
