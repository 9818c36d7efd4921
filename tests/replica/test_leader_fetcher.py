"""A follower's fetches from one leader, whose answers a test writes."""

import errno
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.drive import Slices
from kwire.log.config import LogConfig
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.records.build import New, batch
from kwire.records.header import headers
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.fetcher.leader_fetcher import ENDED_MAX
from kwire.replica.fetcher.session import Position
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderUnreachable
from simulation.disk import PLENTY, SimDisk
from tests.support.log.batches import append, encode
from tests.support.replica.leader import TOPIC, Answer, Leader, following, ten_records

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


def batches_of_epochs(*epochs: int, start: int = 0, damaged: int | None = None) -> Answer:
    """Return an answer with one record of each epoch, of which one may be damaged."""
    batches = [
        encode([b"of-%d" % epoch], base_offset=start + index, leader_epoch=epoch)
        for index, epoch in enumerate(epochs)
    ]
    if damaged is not None:
        batches[damaged] = batches[damaged][:-1] + b"!"
    return Answer(partition_index=0, high_watermark=0, records=b"".join(batches))


def epochs_in(log: PartitionLog) -> list[int]:
    """Return the leader epoch of each batch of a log."""
    with log.read(log.log_start, 1 << 20, end_offset=log.end_offset) as region:
        return [header.leader_epoch for _, header in headers(region.read())]


async def test_batches_of_a_later_epoch_than_the_fetch_are_not_appended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 23: a deposed leader has truncated its log before the answer was sent.

    Its batches of the next epoch stand where those of the fetched epoch stood. Behind the latter
    they would look like a log that does not diverge.
    """
    leader = Leader(
        lambda offset: (
            batches_of_epochs(4, 5, 6, 6)
            if not offset
            else batches_of_epochs(6, 6, start=2)
            if offset == 2
            else None
        )
    )
    async with following(leader) as (partition, fetcher, _):
        await trio.sleep(10)
        assert epochs_in(partition.log) == [4, 5]
        assert partition.log.epochs.latest == 5
        assert len(leader.offsets) < 30, "the answer is asked for again without a pause"
        fetcher.remove(partition)
        partition.follow(2, 6)
        fetcher.add(partition)
        await trio.sleep(2)
        assert epochs_in(partition.log) == [4, 5, 6, 6]


async def test_batches_of_an_earlier_epoch_than_the_log_are_not_appended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 26: the epochs of a log only grow; a batch behind them is not the leader's."""
    leader = Leader(
        lambda offset: (
            batches_of_epochs(4, 5, 3)
            if not offset
            else batches_of_epochs(4, start=2)
            if offset == 2
            else None
        )
    )
    async with following(leader) as (partition, _, _):
        await trio.sleep(10)
        assert epochs_in(partition.log) == [4, 5]
        assert partition.log.epochs.entries() == [(4, 0), (5, 1)]
        leader.answer = lambda offset: batches_of_epochs(5, start=2) if offset == 2 else None
        await trio.sleep(2)
        assert epochs_in(partition.log) == [4, 5, 5]


async def test_damage_that_lasts_is_reported_again_and_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies of the batches before it are kept; an operator who looks later still sees an error."""
    leader = Leader(
        lambda offset: (
            batches_of_epochs(5, 5, 5, damaged=1)
            if not offset
            else batches_of_epochs(5, 5, start=1, damaged=0)
            if offset == 1
            else None
        )
    )
    async with following(leader) as (partition, _, _):
        await trio.sleep(600)
        reported = [record for record in caplog.records if record.levelname == "ERROR"]
        assert 9 <= len(reported) <= 12
        assert partition.log.end_offset == 1
        leader.answer = lambda offset: batches_of_epochs(5, 5, start=1) if offset == 1 else None
        await trio.sleep(5)
        assert partition.log.end_offset == 3


async def test_log_may_begin_inside_a_batch(autojump_clock: trio.testing.MockClock) -> None:
    """Invariant 39: the leader's first records are deleted, and it sends whole batches."""
    leader = Leader(
        lambda offset: OUT_OF_RANGE if offset < 5 else None if offset >= 10 else records_from(5),
        earliest=5,
    )
    async with following(leader) as (partition, _, _):
        await trio.sleep(5)
        assert (partition.log.log_start, partition.log.end_offset) == (5, 10)
        assert leader.offsets == [0, 5, 10]


async def test_log_cut_inside_a_batch_begins_again_with_that_batch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariants 25 and 39: the leader's first batch spans its log start and the divergence.

    The follower led epoch 2, and has records that nobody else got. The leader has one batch of
    epoch 3 at offsets 2 to 11, of which offsets 2 to 4 were deleted. So its epoch 3 begins at 5.
    """
    diverging = Answer.EpochEndOffset(epoch=2, end_offset=5)
    cut = Answer(partition_index=0, high_watermark=12, diverging_epoch=diverging, records=b"")
    batch = encode([b"new"] * 10, base_offset=2, leader_epoch=3)
    first = Answer(partition_index=0, high_watermark=12, log_start_offset=5, records=batch)
    leader = Leader(lambda offset: None)
    async with following(leader) as (partition, fetcher, _):
        for _ in range(8):
            append(partition.log, [b"old"], epoch=2)
        leader.answer = lambda offset: {8: cut, 5: first}.get(offset)
        fetcher.remove(partition)
        fetcher.add(partition)
        await trio.sleep(5)
        log = partition.log
        assert (log.log_start, log.end_offset, log.high_watermark) == (5, 12, 12)
        assert epochs_in(log) == [3]


async def test_malformed_answer_ends_neither_broker_nor_fetcher(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leader = Leader(lambda offset: OUT_OF_RANGE, has_offsets=False)
    async with following(leader) as (partition, _, _):
        await trio.sleep(5)
        leader.answer = lambda offset: None if offset else records_from()
        await trio.sleep(5)
        assert partition.log.end_offset == 10


async def test_fault_of_one_partition_does_not_keep_others_from_being_copied(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Invariant 35: each answer has records of both partitions, the faulty one first."""
    append = FollowedPartition.append

    def append_or_fail(followed: FollowedPartition, *arguments: Any) -> None:
        if str(followed.partition.log.partition) == "t-0":
            raise RuntimeError("a fault")
        append(followed, *arguments)

    monkeypatch.setattr(FollowedPartition, "append", append_or_fail)
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader) as (partition, fetcher, logs):
        other = Partition("t", 1, TOPIC, logs.create("t", TOPIC, 1, LogConfig()))
        other.follow(2, 5)
        fetcher.add(other)
        leader.others = [1]
        await trio.sleep(5)
        assert (partition.log.end_offset, other.log.end_offset) == (0, 10)
    assert "a fault" in caplog.text


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

            async def keep_starts(
                _: LogManager, logs: list[PartitionLog]
            ) -> dict[PartitionLog, errors.KafkaStorageError]:
                await trio.lowlevel.checkpoint()
                return dict.fromkeys(logs, errors.KafkaStorageError("too many open files"))

            failing.setattr(LogManager, "keep_starts", keep_starts)
            await trio.sleep(5)
            assert partition.log.log_start == 5
            assert (leader.offsets[-1], set(leader.starts)) == (10, {0})
        await trio.sleep(5)
        assert leader.starts[-1] == 5
        assert b"t 0 5" in disk.after_kill().read("log-start-offset-checkpoint")


async def test_log_start_that_was_stored_before_a_cut_is_stored_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 39: the cut below the stored log start has stored a lower one.

    Offsets 3 to 9 of a leader elected uncleanly have other records, of which the first is deleted
    later.
    """
    diverging = Answer.EpochEndOffset(epoch=0, end_offset=3)
    cut = Answer(partition_index=0, high_watermark=3, diverging_epoch=diverging, records=b"")
    batch = encode([b"new"] * 7, base_offset=3, leader_epoch=4)
    others = Answer(partition_index=0, high_watermark=10, log_start_offset=4, records=batch)
    leader, disk = Leader(lambda offset: None if offset else records_from(5)), SimDisk()
    stored: list[bytes] = []

    def answer(offset: int) -> Answer | None:
        if leader.starts[-1] == 4:
            stored.append(disk.after_kill().read("log-start-offset-checkpoint"))
        return {10: None if 3 in leader.offsets else cut, 3: others}.get(offset)

    async with following(leader, disk=disk) as (partition, fetcher, _):
        await trio.sleep(5)
        assert leader.starts[-1] == 5
        leader.answer = answer
        fetcher.remove(partition)
        fetcher.add(partition)
        await trio.sleep(5)
        assert (partition.log.log_start, partition.log.end_offset) == (4, 10)
        assert stored
        assert b"t 0 4" in stored[0]


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


async def test_follower_fetches_on_after_its_disk_was_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariants 12 and 88: it fetches nothing while batches wait for room, and gets no append."""
    disk = SimDisk()
    disk.slow = True
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader, disk=disk) as (partition, _, _):
        disk.fail_at("write", OSError(errno.ENOSPC, "no space left on device"), path=".log")
        disk.capacity = sum(inode.room for inode in disk.files.values())
        await trio.sleep(60)
        assert leader.offsets == [0]
        assert (partition.log.writer.written_offset, partition.log.end_offset) == (0, 10)
        disk.capacity = PLENTY
        await trio.sleep(5)
        assert partition.log.writer.written_offset == 10
        assert leader.offsets[-1] == 10


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


def eleventh_record() -> Answer:
    data = batch([New(None, b"10")], timestamp_ms=1, base_offset=10)
    return Answer(partition_index=0, high_watermark=11, records=data)


async def test_follower_copies_on_after_retention_has_emptied_its_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 35: a fetch from an empty log names no last epoch, unlike the one that waits."""
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader, LogConfig(retention_ms=1)) as (partition, _, logs):
        await trio.sleep(1)
        await logs.retain(partition.log)
        assert partition.log.log_start == partition.log.end_offset == 10
        leader.answer = lambda offset: eleventh_record() if offset == 10 else None
        await trio.sleep(2)
        assert partition.log.end_offset == 11


async def test_follower_copies_on_after_its_topic_has_to_be_synced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 35: while a fetch waits, ``flush.messages`` makes a sync of the log due."""
    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader) as (partition, _, _):
        await trio.sleep(1)
        partition.configure(LogConfig(flush_messages=1))
        leader.answer = lambda offset: eleventh_record() if offset == 10 else None
        await trio.sleep(2)
        assert partition.log.end_offset == partition.log.flush_state.recovery_point == 11
        assert leader.offsets[-1] == 11


async def test_log_that_diverges_is_confirmed_once_it_is_truncated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 38: until then no consumer may read it."""
    diverging = Answer(
        partition_index=0,
        high_watermark=10,
        diverging_epoch=Answer.EpochEndOffset(epoch=0, end_offset=0),
        records=b"",
    )
    leader = Leader(lambda offset: diverging if offset else None)
    async with following(leader) as (partition, fetcher, _):
        fetcher.remove(partition)
        partition.log.append_follower(ten_records())
        partition.log.high_watermark = 10
        fetcher.add(partition)
        await trio.sleep(2)
        assert leader.offsets[-2:] == [10, 0]
        assert not partition.is_confirmed
        leader.answer = lambda offset: None if offset else records_from()
        await trio.sleep(2)
        assert partition.is_confirmed
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


class SlowLeader(Leader):
    """A leader whose answers take a second on the way."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        response = await super().fetch(request)
        await trio.sleep(1)
        return response


async def test_copies_over_a_slow_link_go_on_while_roles_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Partitions that change their leader, one after the other, do not starve the others."""
    leader = SlowLeader(lambda offset: batches_of_epochs(5, start=offset) if offset < 10 else None)
    async with following(leader) as (partition, fetcher, logs):
        other = Partition("o", 0, b"o" * 16, logs.create("o", b"o" * 16, 0, LogConfig()))
        other.follow(2, 5)
        for _ in range(300):
            fetcher.add(other)
            await trio.sleep(0.1)
            fetcher.remove(other)
        assert partition.log.end_offset == 10


async def test_partition_that_becomes_ready_while_others_are_checked_is_fetched(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 35: nothing else would ever wake the fetcher of many partitions, none of which is
    in its session.
    """
    is_unready = True
    position, pause = FollowedPartition.position, Slices.pause

    def position_or_none(followed: FollowedPartition) -> Position | None:
        return None if is_unready or followed.partition is not partition else position(followed)

    leader = Leader(lambda offset: None if offset else records_from())
    async with following(leader) as (partition, fetcher, logs):
        monkeypatch.setattr(FollowedPartition, "position", position_or_none)
        for index in range(1, ENDED_MAX + 2):
            other = Partition("t", index, TOPIC, logs.create("t", TOPIC, index, LogConfig()))
            other.follow(2, 5)
            fetcher.add(other)
        await trio.sleep(4.5)  # No other task pauses then.

        async def release_and_pause(slices: Slices) -> None:
            nonlocal is_unready
            if is_unready:
                is_unready = False
                fetcher.on_written(partition)
            await pause(slices)

        monkeypatch.setattr(Slices, "pause", release_and_pause)
        fetcher.on_written(other)
        await trio.sleep(0.01)
        assert not is_unready
        assert leader.offsets[:1] == [0]
