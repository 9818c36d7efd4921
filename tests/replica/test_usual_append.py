"""The append of usual batches, compared with the general path.

Two brokers get the same calls. One appends usual batches in one step, the other takes the general
path for every batch. Clients, disks and later appends must not be able to tell them apart.
"""

import errno
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any, Final
from unittest import mock

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kwire.drive import run_steps
from kwire.errors import KafkaError
from kwire.log import partition_log
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.producers import FrozenProducers
from kwire.log.segments import growing_index
from kwire.log.segments.segment import Segment
from kwire.records.build import New, assemble, batch
from kwire.records.header import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    parse,
)
from kwire.records.validate import check_produced
from kwire.replica import replicas as replicas_module
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.fetch_waits import FetchWait
from kwire.replica.leader import PartitionLeader
from kwire.replica.markers import append_marker
from kwire.replica.partition import FetchIsolation, Partition, ProduceResult
from kwire.replica.replicas import ReplicaService
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import NOT_REQUIRED, TransactionalBatch
from kwire.types import TopicPartition
from simulation.disk import PLENTY, SimDisk
from tests.support.handlers.broker import NODE, topic_id
from tests.support.handlers.bytecodes import Stopped

FOLLOWER: Final = 2
FOLLOWERS: Final = ((), (FOLLOWER,))
NOW_MS: Final = 1_700_000_000_000
PRODUCERS: Final = (7, 8)
USUAL_CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"segment_bytes": 1000},
    {"segment_bytes": 2500, "index_interval_bytes": 250, "segment_index_bytes": 56},
    {"segment_bytes": 5000, "index_interval_bytes": 300},
    {"segment_ms": 5_000, "index_interval_bytes": 500},
    {"segment_ms": 8_000, "segment_jitter_ms": 12_000},
    {"timestamp_before_max_ms": 4_000, "timestamp_after_max_ms": 2_000},
    {"segment_ms": 5_000, "segment_bytes": 900, "timestamp_before_max_ms": 4_000},
    {"flush_messages": 8},
    {"min_insync_replicas": 2},
)
UNUSUAL_CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {"log_append_time": True},
    {"flush_messages": 2},
    {"preallocate": True, "segment_bytes": 3000},
    {"segment_bytes": 120},
    {"index_interval_bytes": 0},
)


@attrs.define
class Lease:
    """A lease that a test ends."""

    end: float = float("inf")

    def is_over(self, now: float) -> bool:
        return now >= self.end

    def left_s(self, now: float) -> float:
        return self.end - now

    def over_s(self, now: float) -> float:
        return max(0.0, now - self.end)


@attrs.define
class World:
    """A broker with one partition, with or without the append of usual batches."""

    is_general: bool
    config: LogConfig = attrs.field(factory=LogConfig)
    now: float = 1000.0
    now_ms: int = NOW_MS
    epoch: int = 0
    lease: Lease = attrs.field(factory=Lease)
    disk: SimDisk = attrs.field(factory=SimDisk)
    replicas: ReplicaService = attrs.field(init=False)
    partition: Partition = attrs.field(init=False)
    queued: int = 0
    waits: list[FetchWait] = attrs.field(factory=list)
    frozen: list[FrozenProducers] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.disk.make_directory("t-0")
        self.disk.keep_room()
        log = partition_log.create(
            self.disk, "t-0", TopicPartition("t", 0), now_ms=NOW_MS, config=self.config
        )
        log.segments.random_below = lambda limit: limit // 2
        log.writer.on_queued = self._on_queued
        self.replicas = ReplicaService(
            node=NODE,
            logs=LogManager([LogDirectory(self.disk, "/data")], Stopped()),
            configs=lambda _: self.config,
            sessions=FetchSessions(10, 120.0, itertools.count(1).__next__),
            now=lambda: self.now,
            lease=self.lease,
        )
        self.partition = self.replicas.partitions.add("t", topic_id("t"), 0, log)

    def _on_queued(self) -> None:
        self.queued += 1

    def lead(self, followers: tuple[int, ...] = ()) -> None:
        partition, self.epoch = self.partition, self.epoch + 1
        members = (NODE, *followers)
        leader = PartitionLeader.take_over(
            node=NODE,
            leader_epoch=self.epoch,
            partition_epoch=self.epoch,
            replicas=members,
            isr=members,
            log=partition.log,
            log_end=partition.log.end_offset,
            min_isr=self.config.min_insync_replicas,
            now=self.now,
            is_eligible=lambda node, epoch: True,
        )
        partition.lead(leader, self.now)
        self.replicas._syncs.start(partition)

    def append(
        self, data: bytes, header: BatchHeader, acks: int, from_client: bool = True
    ) -> ProduceResult:
        return self.replicas.append(
            self.partition,
            memoryview(data),
            header,
            acks,
            self.now_ms,
            from_client=from_client,
            guard=NOT_REQUIRED,
        )

    def state(self) -> dict[str, Any]:
        """Return all that a later call, a client or the disk can show."""
        partition, log = self.partition, self.partition.log
        producers, flushes = log.producers, log.flush_state
        return {
            "files": {path: bytes(inode.data) for path, inode in self.disk.files.items()},
            "health": (self.disk.full, self.disk.failed and str(self.disk.failed), self.queued),
            "ends": (log.log_start, log.end_offset, log.high_watermark, log.writer.written_offset),
            "readable": partition.readable_ends,
            "leader": partition.leader and (partition.leader.log_end, partition.leader.isr),
            "uncommitted": list(partition.uncommitted),
            "epochs": log.epochs.entries(),
            "segments": [segment_state(segment) for segment in log.segments],
            "producers": list(producers.all()),
            "snapshots": [frozen.to_bytes() for frozen in self.frozen],
            "open": (dict(producers.open_starts), list(producers.unreplicated)),
            "sync": (flushes.recovery_point, flushes.unsynced.has_new_names, log.must_flush),
            "queue": [type(operation).__name__ for operation in log.writer.queue.queue],
            "marked": log.changes.is_marked,
            "traffic": (partition.traffic.messages_in.value, partition.traffic.bytes_in.value),
            "verifications": len(partition.verifications),
            "waits": [(wait.missing_bytes, wait.is_over) for wait in self.waits],
        }


def segment_state(segment: Segment) -> tuple[object, ...]:
    offsets, times, aborted = segment.indexes.data()
    return (
        segment.base_offset,
        segment.size,
        segment.written,
        segment.first_timestamp,
        (segment.max_timestamp, segment.max_timestamp_offset),
        (segment._since_index, segment.indexes.has_surplus, segment.space.end),
        (list(segment._recent_next), list(segment._recent_position)),
        (offsets, times, aborted),
    )


def outcome(call: Callable[[World], object], world: World) -> object:
    """Return the result of a call, or its error as a client sees it."""
    never = mock.patch.object(replicas_module, "append_usual", return_value=None)
    try:
        with never if world.is_general else nullcontext():
            return call(world)
    except KafkaError as error:
        return type(error), str(error), error.record_errors


class TwoPaths:
    """The same calls to both brokers."""

    def __init__(self, config: dict[str, Any], followers: tuple[int, ...]) -> None:
        self.config = config
        self.worlds = World(is_general=False), World(is_general=True)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.configure(config)
        self.both(lambda world: world.lead(followers))
        self.produce([1])
        self.roll()

    @property
    def usual(self) -> World:
        return self.worlds[0]

    def both(self, call: Callable[[World], object]) -> object:
        """Make a call to both brokers; return the result, which must be equal."""
        ours, theirs = (outcome(call, world) for world in self.worlds)
        assert ours == theirs
        return ours

    def compare(self) -> None:
        ours, theirs = (world.state() for world in self.worlds)
        assert ours == theirs

    def heal(self) -> None:
        """End what makes batches unusual."""
        self.mend_disk()
        for world in self.worlds:
            world.lease.end = float("inf")
        self.write_queued()
        if self.config not in USUAL_CONFIGS:
            self.configure({})
        if self.usual.partition.leader is None:
            self.next_epoch(())
        for producer in PRODUCERS:
            self.end_transaction(producer, commit=True)
        self.flush()

    def mend_disk(self) -> None:
        for world in self.worlds:
            world.disk.mend()
            world.disk.slow, world.disk.capacity = False, PLENTY
            world.disk.has_room()

    def produce(
        self,
        values: list[int],
        producer: int = -1,
        order: str = "next",
        acks: int = 1,
        at_ms: int | None = 0,
        flags: int = 0,
        tail: bytes = b"",
        from_client: bool = True,
    ) -> None:
        """Append one batch; ``values`` are the sizes of its records' values."""
        data = self.batch(values, producer, order, at_ms, flags) + tail
        header = check_produced(data, max_message_bytes=1 << 20, transactional_id="tx")
        self.both(lambda world: world.append(data, header, acks, from_client))
        if producer in PRODUCERS:
            state = self.usual.partition.log.producers.get(producer)
            if state is not None:
                self.sequences[producer] = state.last_sequence + 1
                self.epochs[producer] = state.epoch

    def batch(
        self, values: list[int], producer: int, order: str, at_ms: int | None, flags: int
    ) -> bytes:
        sequence, epoch = -1, -1
        if producer in PRODUCERS:
            epoch = self.epochs[producer] + {"new epoch": 1, "wrong epoch": 1}.get(order, 0)
            sequence = 0 if order == "new epoch" else self.sequences[producer]
            sequence = max(0, sequence + {"again": -1, "gap": 3}.get(order, 0))
        data = batch(
            [New(None, bytes(size)) for size in values],
            timestamp_ms=-1 if at_ms is None else self.usual.now_ms + at_ms,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=bool(flags & TRANSACTIONAL and producer in PRODUCERS),
        )
        if flags & LOG_APPEND_TIME:  # A client may set what only a broker should set.
            header = parse(data)
            header = header._replace(attributes=header.attributes | LOG_APPEND_TIME)
            data = assemble(header, data[HEADER_SIZE:])
        return data

    # -- what makes batches unusual

    def begin_transaction(self, producer: int) -> None:
        self.produce([1], producer, flags=TRANSACTIONAL)

    def verify_next_epoch(self, producer: int) -> None:
        """Begin to verify a batch of the producer's next epoch."""
        following = TransactionalBatch(producer, self.epochs[producer] + 1)

        def begin(world: World) -> bool:
            partition = world.partition
            guard = partition.verifications.begin(
                partition.log.producers,
                following,
                adds_partitions=True,
                now_ms=world.now_ms,
                expiration_ms=1000,
            )
            return guard is None

        self.both(begin)

    def end_transaction(self, producer: int, commit: bool) -> None:
        marker = TransactionMarker(
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            commit=commit,
            coordinator_epoch=0,
            partitions=[],
        )
        self.both(
            lambda world: append_marker(world.replicas, world.partition, marker, world.now_ms)
        )

    def configure(self, config: dict[str, Any]) -> None:
        self.config = config

        def change(world: World) -> None:
            world.config = LogConfig(**config)
            world.replicas.roles.configure(world.partition, world.config)

        self.both(change)

    def wait(self, elapsed_ms: int) -> None:
        for world in self.worlds:
            world.now += elapsed_ms / 1000
            world.now_ms += elapsed_ms

    def end_lease(self, left_s: float) -> None:
        for world in self.worlds:
            world.lease.end = world.now + left_s

    def slow_down(self, batches: int) -> None:
        """Make the disk slow for some batches, so that these wait in the queue."""
        for world in self.worlds:
            world.disk.slow = True
        for _ in range(batches):
            self.produce([20])
        for world in self.worlds:
            world.disk.slow = not batches

    def write_queued(self) -> None:
        def write(world: World) -> None:
            world.partition.log.write_queued()
            world.replicas.on_log_written(world.partition.log)

        self.both(write)

    def fail(self, kind: str, number: int, after: int) -> None:
        for world in self.worlds:
            world.disk.fail_at(kind, OSError(number, "test"), after=after)

    def fill_disk(self) -> None:
        """Let no further byte fit, as when another program fills the volume."""
        for world in self.worlds:
            world.disk.capacity = 0
        self.produce([20])

    def flush(self) -> None:
        def sync(world: World) -> None:
            world.partition.log.flush_state.flush()
            world.replicas.on_log_written(world.partition.log)

        self.both(sync)

    def checkpoint(self) -> None:
        for world in self.worlds:
            world.partition.log.changes.clean()

    def roll(self) -> None:
        self.both(lambda world: world.partition.log.roll(world.now_ms).base_offset)

    def freeze(self) -> None:
        """Take a producer snapshot, which shares the producers until they change."""
        for world in self.worlds:
            world.frozen.append(world.partition.log.producers.freeze())

    def next_epoch(self, followers: tuple[int, ...]) -> None:
        self.both(lambda world: world.lead(followers))

    def follow(self, back: int, copied: int) -> None:
        """Truncate and copy as a follower."""

        def change(world: World) -> None:
            partition, log = world.partition, world.partition.log
            world.epoch += 1
            partition.follow(FOLLOWER, world.epoch)
            log.truncate_to(max(log.log_start, log.end_offset - back), world.now_ms)
            for _ in range(copied):
                data = batch(
                    [New(None, bytes(30))],
                    timestamp_ms=world.now_ms,
                    base_offset=log.end_offset,
                    leader_epoch=world.epoch,
                )
                log.append_follower(data, world.now_ms, world.epoch)

        self.both(change)

    def follow_and_lead(self, back: int, copied: int, followers: tuple[int, ...]) -> None:
        self.follow(back, copied)
        self.next_epoch(followers)

    def fetch_as_follower(self, behind: int) -> None:
        def fetch(world: World) -> None:
            leader = world.partition.leader
            if leader is not None and FOLLOWER in leader.followers:
                offset = max(0, leader.log_end - behind)
                world.replicas.on_follower_fetched(
                    world.partition, FOLLOWER, offset=offset, log_start=0, broker_epoch=-1
                )

        self.both(fetch)

    def change_isr(self, isr: tuple[int, ...]) -> None:
        def change(world: World) -> None:
            leader = world.partition.leader
            if leader is not None and leader.followers:
                leader.on_isr_answered(isr, leader.partition_epoch + 1, world.now)

        self.both(change)

    def delete_records(self, offset: int) -> None:
        self.both(lambda world: world.replicas.delete_before(world.partition, offset))

    def wait_for_bytes(self, isolation: FetchIsolation, missing_bytes: int) -> None:
        for world in self.worlds:
            wait = world.replicas.fetch_waits.begin(missing_bytes, isolation)
            world.replicas.fetch_waits.add(wait, (world.partition,))
            world.waits.append(wait)

    def close_descriptors(self) -> None:
        for world in self.worlds:
            world.disk.shed()

    def expire_producers(self) -> None:
        self.both(
            lambda world: run_steps(world.partition.log.producers.expiring(world.now_ms, 7_000))
        )


DISTURBANCES: Final[tuple[tuple[Any, ...], ...]] = (
    ("begin_transaction", PRODUCERS),
    ("end_transaction", PRODUCERS, (True, False)),
    ("configure", USUAL_CONFIGS),
    ("configure", UNUSUAL_CONFIGS),
    ("wait", (900, 3_000, 5_500, 9_000)),
    ("end_lease", (0.0, 0.5)),
    ("slow_down", (0, 1, 2)),
    ("slow_down", (1, 2)),
    ("fail", ("write", "allocate", "create"), (errno.ENOSPC, errno.EMFILE), (0, 1, 2)),
    ("fill_disk",),
    ("flush",),
    ("checkpoint",),
    ("roll",),
    ("freeze",),
    ("next_epoch", FOLLOWERS),
    ("follow", range(6), range(4)),
    ("follow_and_lead", range(6), range(4), FOLLOWERS),
    ("fetch_as_follower", range(4)),
    ("change_isr", ((NODE,), (NODE, FOLLOWER))),
    ("delete_records", range(20)),
    ("wait_for_bytes", tuple(FetchIsolation), (1, 150, 700)),
    ("close_descriptors",),
    ("expire_producers",),
)
"""Methods of :class:`TwoPaths`, and the values of each argument."""
ODDITIES: Final[dict[str, tuple[Any, ...]]] = {
    "producer": (-1, *PRODUCERS),
    "order": ("again", "gap", "new epoch", "wrong epoch"),
    "acks": (-1,),
    "at_ms": (1_500, 3_000, 9_000, -3_000, -6_000, None),
    "flags": (LOG_APPEND_TIME, TRANSACTIONAL),
    "tail": (bytes(5),),
    "from_client": (False,),
}
"""Arguments of :meth:`TwoPaths.produce`, and values other than the default."""


@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=True))
def test_usual_append_does_what_the_general_path_does(random: Random) -> None:
    """Each step appends usual batches, changes something, and appends any batches."""
    with mock.patch.object(growing_index, "PIECE_ENTRIES", 3):
        subject = TwoPaths(random.choice(USUAL_CONFIGS), random.choice(FOLLOWERS))
        for _ in range(10):
            subject.heal()
            producer = random.choice((-1, *PRODUCERS))
            for _ in range(random.randint(2, 5)):
                subject.produce([20], producer)
            subject.compare()
            for name, *choices in random.choices(DISTURBANCES, k=random.choice((0, 1, 1, 2))):
                getattr(subject, name)(*map(random.choice, choices))
            subject.compare()
            for _ in range(random.randint(1, 4)):
                values = [random.choice((0, 20, 120)) for _ in range(random.choice((1, 1, 3)))]
                odd = random.sample(sorted(ODDITIES), k=random.choice((0, 0, 1, 1, 2)))
                oddities = {name: random.choice(ODDITIES[name]) for name in odd}
                subject.produce(values, **({"producer": producer} | oddities))
            subject.compare()


USUAL: Final = ("produce", [20])
IN_TRANSACTION: Final = ("produce", [20], PRODUCERS[0], "next", -1, 0, TRANSACTIONAL)
SCENARIOS: Final[dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]]] = {
    "a rejected batch, while a batch waits for a slow disk": (
        {"timestamp_after_max_ms": 2_000},
        [("slow_down", 1), ("produce", [20], -1, "next", 1, 9_000), USUAL, USUAL],
    ),
    "a truncation below the recovery point": (
        {"flush_messages": 8},
        [*[USUAL] * 4, ("flush",), *[USUAL] * 4, ("follow_and_lead", 6, 0, ()), *[USUAL] * 9],
    ),
    "a truncation to an older first batch": (
        {"segment_ms": 5_000},
        [("roll",), USUAL, USUAL, USUAL, ("follow_and_lead", 3, 0, ())]
        + [("produce", [20], -1, "next", 1, at_ms) for at_ms in (-4_000, 0, 2_000)],
    ),
    "a roll whose time was drawn": (
        {"segment_ms": 8_000, "segment_jitter_ms": 12_000},
        [("roll",), USUAL, USUAL, USUAL, ("produce", [20], -1, "next", 1, 5_000)],
    ),
    "a change to append times": (
        {},
        [USUAL, ("configure", {"log_append_time": True}), *[USUAL] * 4],
    ),
    "a shrunk ISR": (
        {"min_insync_replicas": 2},
        [
            ("next_epoch", (FOLLOWER,)),
            *[USUAL] * 3,
            ("change_isr", (NODE,)),
            ("produce", [20], -1, "next", -1),
        ],
    ),
    "a transaction was opened": (
        {},
        [
            ("begin_transaction", PRODUCERS[0]),
            ("wait_for_bytes", FetchIsolation.STABLE, 1),
            ("wait_for_bytes", FetchIsolation.HIGH_WATERMARK, 1),
            USUAL,
            IN_TRANSACTION,
            ("verify_next_epoch", PRODUCERS[0]),
            IN_TRANSACTION,
            ("produce", [20], PRODUCERS[0]),
            ("begin_transaction", PRODUCERS[1]),
            IN_TRANSACTION,
            ("end_transaction", PRODUCERS[0], False),
            USUAL,
            IN_TRANSACTION,
        ],
    ),
    "a transaction was opened and a follower copies": (
        {},
        [
            ("next_epoch", (FOLLOWER,)),
            ("begin_transaction", PRODUCERS[0]),
            IN_TRANSACTION,
            ("fetch_as_follower", 0),
            ("wait_for_bytes", FetchIsolation.STABLE, 1),
            IN_TRANSACTION,
            ("end_transaction", PRODUCERS[0], True),
            USUAL,
            ("fetch_as_follower", 0),
            USUAL,
        ],
    ),
    "a file whose blocks are reserved": ({}, [("produce", [300_000])] * 14),
    "a file whose blocks a full disk takes back": (
        {},
        [("produce", [300_000])] * 10
        + [("fail", "write", errno.ENOSPC, 0), USUAL, ("mend_disk",)]
        + [("produce", [600_000])] * 4,
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_usual_append_after(name: str) -> None:
    config, calls = SCENARIOS[name]
    subject = TwoPaths(config, ())
    for method, *arguments in calls:
        getattr(subject, method)(*arguments)
        if config or method != "produce" or len(arguments) > 1:
            subject.compare()
    subject.compare()


@pytest.mark.parametrize("transactional", [False, True])
def test_usual_batches_do_not_take_the_general_path(transactional: bool) -> None:
    world = World(is_general=False)
    world.lead()
    with mock.patch.object(Partition, "append", autospec=True, side_effect=Partition.append) as it:
        for number in range(100):
            data = batch(
                [New(None, bytes(20))],
                timestamp_ms=NOW_MS,
                producer_id=PRODUCERS[0] if transactional else -1,
                producer_epoch=0 if transactional else -1,
                base_sequence=number if transactional else -1,
                transactional=transactional,
            )
            world.append(data, parse(data), 1)
    assert it.call_count == 2, "the first batch of a segment, and the one that finds the limits"
