"""A follower of 3,000 partitions that one leader leads, and the leader's answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.errors import FetchSessionIdNotFound, NotLeaderOrFollower
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.fetcher.fetchers import ReplicaFetchers
from kwire.replica.partition import Partition
from kwire.replica.throttles import RateLimit
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, encode
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 3_000
TOPIC: Final = b"t" * 16
Topic = FetchResponse.FetchableTopicResponse
Answer = Topic.PartitionData


@attrs.define(eq=False)
class Leader:
    """A broker that has as many records of each partition as a row says."""

    meter: TurnMeter
    end_offset: int = 0
    refuses_with: int = 0
    """The error code for all partitions."""
    has_session: bool = True
    requests: list[int] = attrs.field(factory=list)
    """The number of partitions that each fetch has named."""
    _positions: dict[int, int] = attrs.field(factory=dict)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Answer with one record for each partition that has not fetched it."""
        await trio.lowlevel.checkpoint()
        if not self.has_session:
            self.drop()
            return FetchResponse(error_code=FetchSessionIdNotFound.code)
        with self.meter.aside():
            self.requests.append(sum(len(topic.partitions) for topic in request.topics))
            for topic in request.topics:
                for named in topic.partitions:
                    self._positions[named.partition] = named.fetch_offset
            for removal in request.forgotten_topics_data:
                for partition in removal.partitions:
                    self._positions.pop(partition, None)
            answers = [
                self._answer(partition, offset)
                for partition, offset in self._positions.items()
                if self.refuses_with or offset != self.end_offset
            ]
        if not answers:
            await trio.sleep(request.max_wait_ms / 1000)
        return FetchResponse(session_id=1, responses=[Topic(topic_id=TOPIC, partitions=answers)])

    def _answer(self, partition: int, offset: int) -> Answer:
        if self.refuses_with:
            return Answer(
                partition_index=partition,
                error_code=self.refuses_with,
                high_watermark=-1,
                records=b"",
            )
        if offset > self.end_offset:
            epoch = Answer.EpochEndOffset(epoch=0, end_offset=self.end_offset)
            return Answer(
                partition_index=partition, high_watermark=0, diverging_epoch=epoch, records=b""
            )
        records = encode([b"v"], base_offset=offset, leader_epoch=0)
        return Answer(partition_index=partition, high_watermark=offset, records=records)

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        raise NotImplementedError

    def drop(self) -> None:
        self.has_session = True
        self._positions.clear()


@attrs.frozen
class Followers:
    """The partitions that a broker follows, their leaders, and the meter of its process."""

    partitions: list[Partition]
    fetchers: ReplicaFetchers
    leaders: dict[int, Leader]
    meter: TurnMeter

    def end_offsets(self) -> set[int]:
        return {partition.log.end_offset for partition in self.partitions}


@asynccontextmanager
async def followed_partitions(meter: TurnMeter) -> AsyncIterator[Followers]:
    logs = LogManager(
        [LogDirectory(SimDisk(), "data")], Clock(), threads=DiskThreads(meter.in_thread)
    )
    config = LogConfig()
    await logs.open(lambda _: config)
    partitions = [
        Partition("t", number, TOPIC, logs.create("t", TOPIC, number, config))
        for number in range(ALL)
    ]
    leaders = {2: Leader(meter), 3: Leader(meter)}
    fetchers = ReplicaFetchers(
        FetcherConfig(1),
        logs,
        leaders.__getitem__,
        lambda: 7,
        trio.current_time,
        lambda: TIME_MS,
        lambda _: None,
        RateLimit(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        await nursery.start(fetchers.run)
        yield Followers(partitions, fetchers, leaders, meter)
        nursery.cancel_scope.cancel()


FOLLOWED: Final = Scene("fetchers of followed partitions", followed_partitions)
row = FOLLOWED.operation


async def follow(followers: Followers, leader: int, epoch: int) -> None:
    """Measure a change of all leaders, as the metadata's application makes it, in slices."""
    with followers.meter.measuring():
        for partition in followers.partitions:
            partition.follow(leader, epoch)
            followers.fetchers.on_role_changed(partition)
            await trio.lowlevel.checkpoint()
        await trio.sleep(5)


@row(
    "the first fetch, and its answer without records",
    "partitions",
    ALL,
    "replica.fetcher.leader_fetcher.run",
)
async def begin(followers: Followers, size: int) -> None:
    """The partitions come one after the other; then a lost session has the next fetch name all."""
    await follow(followers, 2, 0)
    followers.leaders[2].has_session = False
    with followers.meter.measuring():
        await trio.sleep(5)
    assert size in followers.leaders[2].requests


@row(
    "a fetch of records for all",
    "partitions",
    ALL,
    after="the first fetch, and its answer without records",
)
async def copy(followers: Followers, size: int) -> None:
    followers.leaders[2].end_offset = 3
    with followers.meter.measuring():
        await trio.sleep(10)
    assert followers.end_offsets() == {3}


@row("a change of all leaders", "partitions", ALL, after="a fetch of records for all")
async def change(followers: Followers, size: int) -> None:
    followers.leaders[3].end_offset = 4
    await follow(followers, 3, 1)
    assert followers.end_offsets() == {4}


@row("a leader from which logs diverge", "partitions", 300, after="a change of all leaders")
async def truncate(followers: Followers, size: int) -> None:
    others = followers.partitions[size:]
    del followers.partitions[size:]
    followers.leaders[2].drop()
    followers.leaders[2].end_offset = 1
    await follow(followers, 2, 2)
    assert followers.end_offsets() == {1}
    followers.partitions.extend(others)
    followers.leaders[2].end_offset = 4
    await follow(followers, 2, 3)
    assert followers.end_offsets() == {4}


@row("a leader that refuses all", "partitions", ALL, after="a leader from which logs diverge")
async def refuse(followers: Followers, size: int) -> None:
    leader = followers.leaders[2]
    leader.end_offset, leader.refuses_with = 5, NotLeaderOrFollower.code
    with followers.meter.measuring():
        await trio.sleep(3)
    leader.refuses_with = 0
    with followers.meter.measuring():
        await trio.sleep(3)
    assert followers.end_offsets() == {5}
