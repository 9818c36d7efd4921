"""Consumers that read the same records share a read, while it is right and they are many."""

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.codec.messages import metadata_records as r
from kwire.errors import FencedLeaderEpoch
from kwire.log.formats import names
from kwire.log.segments.segment import Segment
from kwire.replica import fetch_waits
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.partition import Partition
from tests.support.handlers.broker import (
    NOW_MS,
    Broker,
    broker,
    create_topic,
    one_batch,
    topic_id,
    write,
)
from tests.support.handlers.fetch import at, fetch, values
from tests.support.handlers.produce import produce

MANY = 20
OTHER, THIRD = 2, 3
"""The other brokers of the cluster."""


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Broker, Partition]]:
    """Run the replicas of a broker that has a topic."""
    subject = broker()
    partition = await create_topic(subject, **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        yield subject, partition
        nursery.cancel_scope.cancel()


async def read(subject: Broker, offset: int = 0, **more: Any) -> Any:
    (answer,) = await fetch(subject, at("t", offset, **more))
    return answer


async def share(subject: Broker, name: str = "t") -> None:
    """Have many consumers read a topic between two appends, and one after them."""
    for _ in range(2):
        await produce(subject, (name, 0, one_batch(b"v")))
        for _ in range(MANY):
            await fetch(subject, at(name))


async def test_reads_that_find_nothing_share_nothing() -> None:
    """One consumer that polls an idle partition is not many."""
    async with running() as (subject, partition):
        for _ in range(MANY):
            await read(subject)
        await produce(subject, ("t", 0, one_batch(b"v")))
        await read(subject)
        assert partition.shared_reads is None


async def test_number_of_partitions_that_keep_reads_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_waits, "_SHARING_MAX", 2)
    async with running() as (subject, _):
        partitions = [await create_topic(subject, name) for name in "abc"]
        for name in "abc":
            await share(subject, name)
        assert [p.shared_reads is not None for p in partitions] == [False, True, True]


@pytest.mark.parametrize("shares", [False, True])
async def test_deleted_partition_is_freed(shares: bool) -> None:
    """Its reads refer to it, so it would live until all objects are collected."""
    subject = broker()
    partition = await create_topic(subject)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        if shares:
            await share(subject)
        assert (partition.shared_reads is not None) == shares
        gc.collect()
        gc.disable()
        try:
            alive = weakref.ref(partition)
            del partition
            await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
            await wait_all_tasks_blocked()
            assert alive() is None
        finally:
            gc.enable()
        nursery.cancel_scope.cancel()


async def test_appends_that_only_followers_may_read_end_no_sharing() -> None:
    async with running(replicas=(1, OTHER)) as (subject, partition):
        shares = []
        for end in range(1, 4):
            write(subject, partition, b"v")
            shares.append(partition.shared_reads is not None)
            subject.replicas.on_follower_fetched(
                partition, OTHER, offset=end, log_start=0, broker_epoch=-1
            )
            shares.append(partition.shared_reads is not None)
            for _ in range(MANY):
                await read(subject)
        assert shares == [False, False, False, True, True, True]


async def follow(subject: Broker, partition: Partition) -> FollowedPartition:
    """Make the broker, which led, follow another one."""
    write(subject, partition, b"old")
    for other in (OTHER, THIRD):
        subject.replicas.on_follower_fetched(
            partition, other, offset=1, log_start=0, broker_epoch=-1
        )
    await subject.lead_again("t", leader=OTHER)
    return FollowedPartition(partition, OTHER, partition.leader_epoch)


def copy(subject: Broker, followed: FollowedPartition, data: bytes, high_watermark: int) -> None:
    followed.append(data, high_watermark, 0, NOW_MS)
    subject.replicas._completion.on_copied(followed.partition)


async def test_follower_fences_the_epoch_of_a_read_that_was_shared() -> None:
    async with running(replicas=(1, OTHER, THIRD)) as (subject, partition):
        followed = await follow(subject, partition)
        epoch = partition.leader_epoch
        for _ in range(MANY):
            await read(subject, current_leader_epoch=epoch)
        second = bytearray(one_batch(b"2nd", leader_epoch=1))
        second[:8] = (1).to_bytes(8, "big")
        copy(subject, followed, bytes(second), 2)
        assert partition.shared_reads is not None
        assert values(await read(subject, current_leader_epoch=epoch)) == [(0, b"old"), (1, b"2nd")]
        await subject.lead_again("t", leader=THIRD)
        answer = await read(subject, current_leader_epoch=epoch)
        assert answer.error_code == FencedLeaderEpoch.code


async def test_follower_shares_no_records_that_it_has_truncated() -> None:
    """The log may have the same bounds again, with other records."""
    async with running(replicas=(1, OTHER, THIRD)) as (subject, partition):
        followed = await follow(subject, partition)
        for _ in range(MANY):
            await read(subject)
        second = bytearray(one_batch(b"2nd", leader_epoch=1))
        second[:8] = (1).to_bytes(8, "big")
        copy(subject, followed, bytes(second), 2)
        await subject.lead_again("t", leader=THIRD)
        assert values(await read(subject)) == [(0, b"old"), (1, b"2nd")]
        partition.log.truncate_to(0)
        followed = FollowedPartition(partition, THIRD, partition.leader_epoch)
        copy(subject, followed, one_batch(b"new", b"newer", leader_epoch=2), 2)
        assert values(await read(subject)) == [(0, b"new"), (1, b"newer")]


async def test_records_that_compaction_has_removed_are_shared_no_more() -> None:
    """No append may follow for days, and the consumers may be many."""
    async with running() as (subject, partition):
        await share(subject)
        assert values(await read(subject)) == [(0, b"v"), (1, b"v")]
        log = partition.log
        (old,) = log.segments
        path = f"{log.segments.directory}/{names.stem(0)}{names.LOG}"
        second = subject.disk.read(path)[old.size // 2 :]
        log.segments.begin(2, NOW_MS, log.config)
        old.mark_deleted(names.SEGMENT_SUFFIXES, names.DELETED)
        subject.disk.write(path, second)
        new = Segment(log.disk, log.segments.directory, 0, len(second))
        log.segments.replace([old], [new])
        assert partition.shared_reads is not None
        assert values(await read(subject)) == [(1, b"v")]
