"""A follower's fetches from one leader, whose answers a test writes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.service import LogManager
from kwire.log.threads import DiskThreads
from kwire.records.build import New, batch
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.fetcher.leader_fetcher import LeaderFetcher
from kwire.replica.partition import EARLIEST_LOCAL, Partition
from kwire.replica.ports import LeaderUnreachable
from kwire.simulation.disk import SimDisk
from tests.support.handlers.broker import Wall
from tests.support.log.threads import at_once

TOPIC = b"t" * 16
Topic = FetchResponse.FetchableTopicResponse
Answer = Topic.PartitionData
OUT_OF_RANGE = Answer(
    partition_index=0,
    error_code=errors.OffsetOutOfRange.code,
    high_watermark=-1,
    records=b"",
)


def ten_records() -> bytes:
    return batch([New(None, b"%d" % number) for number in range(10)], timestamp_ms=1)


def records_from(start: int = 0) -> Answer:
    return Answer(
        partition_index=0, high_watermark=10, log_start_offset=start, records=ten_records()
    )


@attrs.define(eq=False)
class Leader:
    """A leader that answers what a test says; without an answer its fetches wait."""

    answer: Callable[[int], Answer | None]
    """Returns the answer to a fetch from an offset."""
    earliest: int = 0
    latest: int = 10
    has_offsets: bool = True
    offsets: list[int] = attrs.field(factory=list)
    """The offset of each fetch that named the partition."""
    starts: list[int] = attrs.field(factory=list)
    """The log start of each of them."""
    at: int = 0

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        await trio.sleep(0.001)
        for topic in request.topics:
            self.at = topic.partitions[0].fetch_offset
            self.offsets.append(self.at)
            self.starts.append(topic.partitions[0].log_start_offset)
        answer = self.answer(self.at)
        if answer is None:
            await trio.sleep(request.max_wait_ms / 1000)
            return FetchResponse(session_id=1)
        return FetchResponse(session_id=1, responses=[Topic(topic_id=TOPIC, partitions=[answer])])

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        await trio.sleep(0.001)
        if not self.has_offsets:
            return ListOffsetsResponse(topics=[])
        shape = ListOffsetsResponse.ListOffsetsTopicResponse
        is_first = request.topics[0].partitions[0].timestamp == EARLIEST_LOCAL
        offset = self.earliest if is_first else self.latest
        answer = shape.ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(topics=[shape(name="t", partitions=[answer])])

    def drop(self) -> None: ...


@asynccontextmanager
async def following(
    leader: Leader, config: LogConfig | None = None, *, disk: SimDisk | None = None
) -> AsyncIterator[tuple[Partition, LeaderFetcher, LogManager]]:
    """A partition that is copied from ``leader``."""
    config = config or LogConfig()
    directory = LogDirectory(disk or SimDisk(), "/data")
    logs = LogManager([directory], Wall(), threads=DiskThreads(at_once))
    await logs.open(lambda _: config)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        partition = Partition("t", 0, TOPIC, logs.create("t", TOPIC, 0, config))
        partition.follow(2, 5)
        fetcher = LeaderFetcher(
            FetcherConfig(1),
            leader,
            logs,
            lambda: 7,
            trio.current_time,
            lambda: 1,
            lambda _: None,
        )
        logs.subscribe(on_written=lambda _: fetcher.on_written(partition))
        fetcher.add(partition)
        nursery.start_soon(fetcher.run)
        yield partition, fetcher, logs
        nursery.cancel_scope.cancel()


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
