"""A leader whose answers a test writes, and a partition that follows it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy

import attrs
import trio

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from kwire.records.build import New, batch
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.fetcher.leader_fetcher import LeaderFetcher
from kwire.replica.partition import EARLIEST_LOCAL, Partition
from simulation.disk import SimDisk
from tests.support.handlers.broker import Wall
from tests.support.log.threads import at_once

TOPIC = b"t" * 16
Topic = FetchResponse.FetchableTopicResponse
Answer = Topic.PartitionData


def ten_records() -> bytes:
    """Return a batch of ten records."""
    return batch([New(None, b"%d" % number) for number in range(10)], timestamp_ms=1)


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
    others: list[int] = attrs.field(factory=list)
    """Further partitions whose answers, with the same content, follow in each response."""
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
        answers = [answer, *(copy(answer) for _ in self.others)]
        for index, other in zip(self.others, answers[1:], strict=True):
            other.partition_index = index
        return FetchResponse(session_id=1, responses=[Topic(topic_id=TOPIC, partitions=answers)])

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
