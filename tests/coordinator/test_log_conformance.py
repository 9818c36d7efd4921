"""The log in memory of the coordinators' tests behaves as the log that coordinators write to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.coordinator.ports import ShardLog
from kwire.records import header
from kwire.records.build import New
from kwire.records.build import batch as build_batch
from kwire.replica import coordinator_log
from kwire.replica.transaction_ports import TransactionMarker
from kwire.types import TopicPartition
from tests.support.coordinator.node import FakeLog
from tests.support.handlers.broker import NODE, NOW_MS, broker

TOPIC = "__consumer_offsets"
WHERE = TopicPartition(TOPIC, 0)
FOLLOWER = 2
PAIR = build_batch([New(b"a", b"1"), New(b"b", b"2")], timestamp_ms=NOW_MS)


@attrs.frozen
class Subject:
    """One implementation, and what happens to its partition from outside."""

    log: ShardLog
    catch_up: Callable[[], None]
    resign: Callable[[], Awaitable[None]]


async def in_memory(*, followed: bool) -> Subject:
    log = FakeLog(replicas_lag=followed)

    async def resign() -> None:
        log.resign()

    return Subject(log, log.catch_up, resign)


async def on_disk(*, followed: bool) -> Subject:
    node = broker()
    hosted = await node.create(TOPIC, replicas=(NODE, FOLLOWER) if followed else (NODE,))
    assert hosted is not None

    def catch_up() -> None:
        node.replicas.on_follower_fetched(
            hosted, FOLLOWER, offset=hosted.log.end_offset, log_start=0, broker_epoch=-1
        )

    return Subject(
        coordinator_log.CoordinatorLog(node.replicas, node.wall),
        catch_up,
        partial(node.lead_again, TOPIC, FOLLOWER),
    )


Make = Callable[..., Awaitable[Subject]]


@pytest.fixture(params=[in_memory, on_disk])
def make(request: pytest.FixtureRequest) -> Make:
    making: Make = request.param
    return making


async def test_appended_batches_are_read_back_whole(make: Make) -> None:
    log = (await make(followed=False)).log
    assert log.bounds(WHERE) == (0, 0)
    assert [log.append(WHERE, PAIR), log.append(WHERE, PAIR)] == [2, 4]
    assert log.bounds(WHERE) == (0, 4)
    for offset, expected in ((0, [0, 2]), (1, [0, 2]), (2, [2]), (3, [2]), (4, [])):
        data = await log.read(WHERE, offset)
        assert [stored.base_offset for _, stored in header.headers(data)] == expected


async def test_marker_takes_one_offset(make: Make) -> None:
    log = (await make(followed=False)).log
    marker = TransactionMarker(
        producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=3, partitions=[WHERE]
    )
    assert log.append_marker(WHERE, marker) == 1
    ((_, stored),) = header.headers(await log.read(WHERE, 0))
    assert (stored.is_control, stored.producer_id, stored.record_count) == (True, 7, 1)


async def test_only_replica_commits_at_once(make: Make) -> None:
    log = (await make(followed=False)).log
    end = log.append(WHERE, PAIR)
    assert log.high_watermark(WHERE) == end
    await log.wait_committed(WHERE, end)


async def test_commit_waits_for_the_followers(make: Make, autojump_clock: object) -> None:
    subject = await make(followed=True)
    end = subject.log.append(WHERE, PAIR)
    assert subject.log.high_watermark(WHERE) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subject.log.wait_committed, WHERE, end)
        await trio.testing.wait_all_tasks_blocked()
        subject.catch_up()
    assert subject.log.high_watermark(WHERE) == end


async def test_wait_fails_when_the_leadership_is_lost(make: Make, autojump_clock: object) -> None:
    subject = await make(followed=True)
    end = subject.log.append(WHERE, PAIR)
    with trio.fail_after(5), pytest.RaisesGroup(errors.NotLeaderOrFollower):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.log.wait_committed, WHERE, end)
            await trio.testing.wait_all_tasks_blocked()
            await subject.resign()


async def test_largest_batch_is_the_topics_default(make: Make) -> None:
    assert (await make(followed=False)).log.max_batch_bytes(WHERE) == 1_048_588
