"""A broker repairs damaged batches with the bytes of another in-sync replica."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.errors import CorruptMessage, KafkaError, KafkaStorageError
from kwire.log.config import LogConfig, ScrubSettings
from kwire.log.disk import Disk
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.replica import damage_repair
from kwire.replica.damage_repair import DamageRepair
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderUnreachable
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

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise LeaderUnreachable("down")
        self.requests.append(request)
        assert request.replica_id == -1
        (topic,) = request.topics
        (partition,) = topic.partitions
        end_offset = self.log.high_watermark
        answer = Answer.PartitionData(
            partition_index=partition.partition, high_watermark=end_offset, records=b""
        )
        try:
            if self.error is not None:
                raise self.error
            size = partition.partition_max_bytes
            with self.log.read(partition.fetch_offset, size, end_offset=end_offset) as region:
                answer.records = region.read()
        except KafkaError as error:
            answer.error_code = error.code
        return FetchResponse(responses=[Answer(topic_id=ID, partitions=[answer])])

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

    def find(self, topic: str, index: int) -> Partition | None:
        return self.partition


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

    def rot(self, position: int, number: int = 1) -> None:
        """Flip a bit in a segment's file."""
        assert isinstance(self.log.disk, SimDisk)
        self.log.disk.rot(self.log.segments[number].file.path, position)


def fill(log: PartitionLog, values: int = 40) -> None:
    for number in range(values):
        append(log, [b"one of %d" % number, b"two of %d" % number], epoch=number // 15)
    log.flush_state.flush()
    log.high_watermark = log.end_offset


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


@pytest.mark.parametrize("position", [3, 10, 13, 16, 18, 22, 26, 60, 80])
async def test_damaged_batch_is_copied_from_another_replica(autojump_clock, position: int) -> None:
    """Invariants 22 and 80; the replicas' segments begin at different offsets."""
    async with cluster() as c:
        before = file_bytes(c.log)
        c.rot(position)
        c.rot(position, 2)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before
        assert c.scrubber.damage_counts() == (0, 0)
        assert c.scrubber.restored_count == 2


async def test_a_whole_file_of_zeros_is_copied_in_pieces(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_repair, "PIECE_BYTES", 250)
    async with cluster() as c:
        before, segment = file_bytes(c.log), c.log.segments[1]
        segment.file.write((bytes(segment.size),), 0)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before
        assert len(c.others[2].requests) > 3


async def test_second_replica_supplies_what_the_first_cannot(autojump_clock) -> None:
    async with cluster() as c:
        before = file_bytes(c.log)
        c.others[2].error = CorruptMessage()
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before


async def test_damaged_bytes_of_another_replica_are_not_copied(autojump_clock) -> None:
    async with cluster(state=State(isr=(1, 2))) as c:
        c.rot(70)
        offset = c.log.segments[1].base_offset
        disk, other = c.others[2].log.disk, c.others[2].log
        assert isinstance(disk, SimDisk)
        segment = other.segments[other.segments.index_of(offset)]
        located = segment.locate(offset)
        assert located is not None
        disk.rot(segment.file.path, located[0] + 70)
        await c.scrub()
        await trio.sleep(1)
        with pytest.raises(KafkaError):
            c.log.read(offset, 1, end_offset=c.log.end_offset)


async def test_batch_of_another_epoch_is_not_copied(autojump_clock) -> None:
    """Invariant 25: after an unclean election, the offset belongs to other records there."""
    async with cluster(state=State(isr=(1, 2))) as c:
        other = c.others[2].log
        other.truncate_to(10)
        for number in range(5, 40):
            append(other, [b"one of %d" % number, b"two of %d" % number], epoch=7)
        other.high_watermark = other.end_offset
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(1)
        assert c.others[2].requests
        assert file_bytes(c.log) == damaged


async def test_replicas_that_are_not_in_sync_are_not_asked(autojump_clock) -> None:
    async with cluster(state=State(isr=(1, 3))) as c:
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert not c.others[2].requests
        assert c.others[3].requests


async def test_repair_is_retried_until_a_replica_answers(autojump_clock) -> None:
    """Clients retry at first; later they get the error that consumers report."""
    async with cluster() as c:
        before, offset = file_bytes(c.log), c.log.segments[1].base_offset
        for other in c.others.values():
            other.is_up = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        with pytest.raises(KafkaStorageError):
            c.log.read(offset, 1, end_offset=c.log.end_offset)
        await trio.sleep(60)
        with pytest.raises(CorruptMessage):
            c.log.read(offset, 1, end_offset=c.log.end_offset)
        c.others[3].is_up = True
        await trio.sleep(300)
        assert file_bytes(c.log) == before


async def test_without_another_replica_consumers_get_a_clear_error_at_once(autojump_clock) -> None:
    async with cluster(state=State(isr=(1,))) as c:
        c.rot(70)
        await c.scrub()
        offset = c.log.segments[1].base_offset
        with pytest.raises(CorruptMessage):
            c.log.read(offset, 1, end_offset=c.log.end_offset)


async def test_log_that_no_leader_has_confirmed_is_not_repaired_yet(autojump_clock) -> None:
    async with cluster() as c:
        before = file_bytes(c.log)
        c.hosted.partition.is_confirmed = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        assert not c.others[2].requests
        c.hosted.partition.is_confirmed = True
        await trio.sleep(5)
        assert file_bytes(c.log) == before


COMPACTED = attrs.evolve(CONFIG, cleanup_compact=True)


@pytest.mark.parametrize("position", [3, 10, 13, 16, 18, 22, 26, 60, 80])
async def test_same_batch_of_a_compacted_log_is_copied(autojump_clock, position: int) -> None:
    async with cluster(COMPACTED) as c:
        before = file_bytes(c.log)
        c.rot(position)
        await c.scrub()
        await trio.sleep(1)
        assert file_bytes(c.log) == before


async def test_batch_that_another_replica_has_compacted_is_not_copied(autojump_clock) -> None:
    """Invariant 87: the other batch has the same size and offsets, but other records."""
    async with cluster(COMPACTED, State(isr=(1, 2))) as c:
        offset = c.log.segments[1].base_offset
        other = c.others[2].log
        other.truncate_to(offset)
        append(other, [b"xne of %d" % (offset // 2), b"two of %d" % (offset // 2)], epoch=0)
        other.high_watermark = other.end_offset
        assert other.segments.active.locate(offset) is not None
        c.rot(70)
        damaged = file_bytes(c.log)
        await c.scrub()
        await trio.sleep(1)
        assert c.others[2].requests
        assert file_bytes(c.log) == damaged


async def test_truncated_damage_needs_no_repair(autojump_clock) -> None:
    async with cluster() as c:
        for other in c.others.values():
            other.is_up = False
        c.rot(70)
        await c.scrub()
        await trio.sleep(1)
        await c.logs.truncate(c.log, c.log.segments[1].base_offset)
        end_offset = c.log.end_offset
        for other in c.others.values():
            other.is_up = True
        await trio.sleep(300)
        assert c.log.end_offset == end_offset
        assert not c.others[2].requests
        assert c.scrubber.damage_counts() == (0, 0)
