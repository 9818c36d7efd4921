"""A follower's fetches from one leader, whose answers a test writes."""

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.log.config import LogConfig
from kwire.log.service import LogManager
from kwire.replica.ports import LeaderUnreachable
from kwire.simulation.disk import SimDisk
from tests.support.replica.leader import Answer, Leader, following, ten_records

OUT_OF_RANGE = Answer(
    partition_index=0,
    error_code=errors.OffsetOutOfRange.code,
    high_watermark=-1,
    records=b"",
)


def records_from(start: int = 0) -> Answer:
    return Answer(
        partition_index=0, high_watermark=10, log_start_offset=start, records=ten_records()
    )


async def test_records_are_appended_with_the_leaders_high_watermark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader) as (partition, _, _):
        await trio.sleep(1)
        assert (partition.log.end_offset, partition.high_watermark) == (10, 10)
        assert leader.offsets == [0, 10]


async def test_log_may_begin_inside_a_batch(autojump_clock: trio.testing.MockClock) -> None:
    """Invariant 39: the leader's first records are deleted, and it sends whole batches."""
    leader = Leader(
        lambda offset: OUT_OF_RANGE if offset < 5 else None if offset >= 10 else records_from(5),
        earliest=5,
    )
    async with following(leader) as (partition, _, _):
        await trio.sleep(5)
        assert (partition.log.start_offset, partition.log.end_offset) == (5, 10)
        assert leader.offsets == [0, 5, 10]


async def test_malformed_answer_ends_neither_broker_nor_fetcher(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leader = Leader(lambda offset: OUT_OF_RANGE, has_offsets=False)
    async with following(leader) as (partition, _, _):
        await trio.sleep(5)
        leader.answer = lambda offset: None if offset else records_from()
        await trio.sleep(5)
        assert partition.log.end_offset == 10


async def test_refusals_that_nothing_explains_are_not_repeated_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The leader takes an offset for out of range that its own range has."""
    leader = Leader(lambda offset: OUT_OF_RANGE)
    async with following(leader):
        await trio.sleep(30)
        assert 5 < len(leader.offsets) < 60


async def test_unsynced_records_are_not_reported_as_copied(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 2 and 30: the leader acknowledges what a follower fetches behind."""
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader, LogConfig(flush_messages=1)) as (partition, _, _):
        with monkeypatch.context() as failing:

            async def flush(*_: object, **__: object) -> None:
                await trio.lowlevel.checkpoint()
                raise errors.KafkaStorageError("too many open files")

            failing.setattr(LogManager, "flush", flush)
            await trio.sleep(5)
            assert partition.log.end_offset == 10
            assert set(leader.offsets) == {0}
        await trio.sleep(5)
        assert partition.log.flush_state.recovery_point == 10
        assert leader.offsets[-1] == 10


async def test_log_start_is_reported_once_it_is_stored(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 39: the leader then acknowledges the deletion, and a restart must not undo it."""
    leader = Leader(lambda offset: None if offset else records_from(5))
    disk = SimDisk()
    async with following(leader, disk=disk) as (partition, _, _):
        with monkeypatch.context() as failing:

            async def keep_starts(*_: object) -> None:
                await trio.lowlevel.checkpoint()
                raise errors.KafkaStorageError("too many open files")

            failing.setattr(LogManager, "keep_starts", keep_starts)
            await trio.sleep(5)
            assert partition.log.start_offset == 5
            assert (leader.offsets[-1], set(leader.starts)) == (10, {0})
        await trio.sleep(5)
        assert leader.starts[-1] == 5
        assert b"t 0 5" in disk.after_kill().read("log-start-offset-checkpoint")


async def test_records_in_the_queue_of_a_slow_disk_are_not_reported_as_copied(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimDisk()
    disk.slow = True
    leader = Leader(lambda offset: None if offset else records_from())
    config = LogConfig(flush_messages=1)
    async with following(leader, config, disk=disk) as (partition, _, _):
        await trio.sleep(5)
        assert leader.offsets[-1] == 10
        assert partition.log.flush_state.recovery_point == 10


async def test_answer_for_a_former_epoch_is_dropped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 24: the former leader says that the logs diverge."""
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader) as (partition, fetcher, _):
        await trio.sleep(1)
        diverging = Answer(
            partition_index=0,
            high_watermark=0,
            diverging_epoch=Answer.EpochEndOffset(epoch=0, end_offset=0),
            records=b"",
        )

        def answer(offset: int) -> Answer | None:
            leader.answer = lambda offset: None
            fetcher.remove(partition)
            partition.follow(2, 9)
            fetcher.add(partition)
            return diverging

        leader.answer = answer
        await trio.sleep(2)
        assert partition.log.end_offset == 10


async def test_leader_out_of_reach_is_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def fail(offset: int) -> Answer:
        raise LeaderUnreachable("down")

    leader = Leader(fail)
    async with following(leader) as (partition, _, _):
        await trio.sleep(10)
        assert 5 < len(leader.offsets) < 30
        leader.answer = lambda offset: None if offset else records_from()
        await trio.sleep(2)
        assert partition.log.end_offset == 10


async def test_partitions_that_are_added_one_by_one_end_few_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leader = Leader(lambda offset: None)
    async with following(leader) as (partition, fetcher, _):
        await trio.sleep(1)
        before = len(leader.offsets)
        for _ in range(200):
            fetcher.add(partition)
            await trio.sleep(0.001)
        await trio.sleep(1)
        assert len(leader.offsets) - before < 20
