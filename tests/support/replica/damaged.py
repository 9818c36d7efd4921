"""A broker with a damaged log, and others that have the same records."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.errors import KafkaError
from kwire.log.config import LogConfig, ScrubSettings
from kwire.log.disk import Disk
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog, create
from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.replica.damage_repair import DamageRepair
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderUnreachable
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.log.thread_workers import ThreadChecker
from tests.support.clock import Clock
from tests.support.log.batches import append
from tests.support.log.manager import ID, manager
from tests.support.log.threads import at_once

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200)
OTHER_CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200)
Answer = FetchResponse.FetchableTopicResponse


async def in_thread(disk: Disk, call: object) -> None:
    await at_once(call)  # type: ignore[arg-type]


@attrs.define(eq=False)
class Broker:
    """Another broker, which answers the fetches of consumers from its log."""

    log: PartitionLog
    is_up: bool = True
    error: KafkaError | None = None
    requests: list[FetchRequest] = attrs.field(factory=list)
    is_stuck: Callable[[FetchRequest], bool] = lambda _: False
    """Returns whether a fetch never gets an answer."""
    more: dict[bytes, PartitionLog] = attrs.field(factory=dict)
    """Other logs by topic id."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise LeaderUnreachable("down")
        self.requests.append(request)
        assert request.replica_id == -1
        if self.is_stuck(request):
            await trio.sleep_forever()
        (topic,) = request.topics
        (partition,) = topic.partitions
        log = self.more.get(topic.topic_id, self.log)
        end_offset = log.high_watermark
        answer = Answer.PartitionData(
            partition_index=partition.partition, high_watermark=end_offset, records=b""
        )
        try:
            if self.error is not None:
                raise self.error
            size = partition.partition_max_bytes
            with log.read(partition.fetch_offset, size, end_offset=end_offset) as region:
                answer.records = region.read()
        except KafkaError as error:
            answer.error_code = error.code
        return FetchResponse(responses=[Answer(topic_id=topic.topic_id, partitions=[answer])])

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        raise AssertionError(request)

    def drop(self) -> None: ...


@attrs.frozen
class State:
    """A partition in the metadata."""

    leader: int = 1
    isr: Sequence[int] = (1, 2, 3)
    replicas: Sequence[int] = (1, 2, 3)


@attrs.frozen
class Registered:
    is_active: bool = True


@attrs.frozen
class Topic:
    partitions: Mapping[int, State]


@attrs.frozen
class Image:
    topics: Mapping[bytes, Topic]
    brokers: Mapping[int, Registered]


@attrs.define(eq=False)
class Hosted:
    """The partitions of broker 1."""

    partition: Partition
    image: Image
    more: dict[str, Partition] = attrs.field(factory=dict)
    """Partitions of other topics, by topic."""

    def find(self, topic: str, index: int) -> Partition | None:
        return self.more.get(topic, self.partition)


@attrs.define(eq=False)
class Cluster:
    """Broker 1, whose log is damaged, and the others, which have the same records."""

    logs: LogManager
    scrubber: LogScrubber
    log: PartitionLog
    repair: DamageRepair
    hosted: Hosted
    others: dict[int, Broker]

    async def scrub(self) -> None:
        (scrub,) = self.scrubber.scrubs
        await scrub.run_pass(ThreadChecker(in_thread))

    def rot(self, position: int, number: int = 1, log: PartitionLog | None = None) -> None:
        """Flip a bit in a segment's file, by default of the damaged log."""
        log = self.log if log is None else log
        assert isinstance(log.disk, SimDisk)
        log.disk.rot(log.segments[number].file.path, position)


def fill(log: PartitionLog, values: int = 40) -> None:
    for number in range(values):
        append(log, [b"one of %d" % number, b"two of %d" % number], epoch=number // 15)
    log.flush_state.flush()
    log.high_watermark = log.end_offset


def filled_log(topic: str) -> PartitionLog:
    """Return another replica's log, with the same records."""
    disk = SimDisk()
    disk.make_directory(f"{topic}-0")
    log = create(disk, f"{topic}-0", TopicPartition(topic, 0), now_ms=0, config=OTHER_CONFIG)
    fill(log)
    return log


def file_bytes(log: PartitionLog) -> bytes:
    return b"".join(s.file.read(0, s.size) for s in log.segments)


@asynccontextmanager
async def cluster(config: LogConfig = CONFIG, state: State | None = None) -> AsyncIterator[Cluster]:
    state = State() if state is None else state
    managers = [manager(SimDisk()) for _ in range(3)]
    logs = []
    for number, each in enumerate(managers):
        await each.open(lambda topic: config)
        is_compacted = config.cleanup_compact
        other_config = attrs.evolve(OTHER_CONFIG, cleanup_compact=is_compacted)
        settings = config if number == 0 else other_config
        logs.append(each.create("t", ID, 0, settings))
        fill(logs[-1])
    partition = Partition("t", 0, ID, logs[0], is_confirmed=True)
    brokers = {node: Registered() for node in (1, 2, 3)}
    hosted = Hosted(partition, Image({ID: Topic({0: state})}, brokers))
    others = {2: Broker(logs[1]), 3: Broker(logs[2])}
    scrubber = make_scrubber(
        managers[0].services.values(),
        lambda: ThreadChecker(in_thread),
        ScrubSettings(interval_s=1e9, bytes_per_second=1e9),
    )
    hosted_partitions: Any = hosted
    repair = DamageRepair(1, hosted_partitions, scrubber, others.__getitem__, Clock())
    scrubber.subscribe(repair.on_damaged)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repair.run)
        yield Cluster(managers[0], scrubber, logs[0], repair, hosted, others)
        nursery.cancel_scope.cancel()
