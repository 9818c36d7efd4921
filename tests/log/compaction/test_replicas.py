"""A compacted partition with three replicas against a dict: invariants 65 and 87.

Each replica has its own disk and cleans its own copy. Rules of the model: a record is committed
once every replica in sync has it; a replica that crashes leaves the ISR until it has caught up
again; a leader that crashes is replaced by another replica in sync. So a follower may hold records
that a new leader lacks, and truncates them. After every step each replica in sync has exactly the
last committed value of every key, at its offset, and no deleted key.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from kwire.records.build import New, batch
from kwire.records.header import parse
from kwire.replica.fetcher import truncation
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadRunner
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.key_logs import read_keys
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

RETENTION_S = 1_000
CONFIG = LogConfig(
    segment_bytes=300,
    index_interval_bytes=50,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=RETENTION_S * 1000,
    file_delete_delay_ms=60_000,
)
SETTINGS = CleanerSettings()
REPLICAS = 3
CHECKPOINT_S = 100
"""Longer than the interval at which recovery points are stored."""
Value = bytes | None


async def in_thread(disk: object, call: Callable[[], None]) -> None:
    await at_once(call)


@attrs.define(eq=False)
class Replica:
    """One copy of the partition, on a broker that can crash and start again."""

    nursery: trio.Nursery
    disk: SimDisk = attrs.field(factory=SimDisk)
    manager: LogManager = attrs.field(init=False)
    log: PartitionLog = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(init=False)
    _ended: trio.Event = attrs.field(init=False)

    async def start(self) -> None:
        directories = [LogDirectory(self.disk, "dir")]
        self.manager = LogManager(directories, Clock(), threads=DiskThreads(at_once))
        await self.manager.open(lambda topic: CONFIG)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await self.nursery.start(self._serve)
        self.log = self.manager.get("t", 0) or self.manager.create("t", ID, 0, CONFIG)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.manager.run)
                    task_status.started()
        except* Killed:
            pass
        finally:
            self._ended.set()

    async def crash(self, seed: int | None) -> None:
        """Kill the process, or with a seed lose the power, and start again."""
        self.disk.changes_left = 0
        self._scope.cancel()
        await self._ended.wait()
        self.disk = self.disk.after_kill() if seed is None else self.disk.power_loss(Random(seed))
        await self.start()

    async def clean(self, changes: int | None) -> bool:
        """Run a pass; return False if the process died after this many changes of the disk."""
        self.disk.changes_left = changes
        cleaning = next(iter(self.manager.services.values())).cleaning
        with suppress(Killed):
            await cleaning.clean(self.log, ThreadRunner(in_thread, clean), SETTINGS)
        is_alive = changes is None or self.disk.changes_left != 0
        if is_alive:
            self.disk.changes_left = None
        return is_alive

    def contents(self, end_offset: int) -> dict[bytes, tuple[int, Value]]:
        """Return offset and value of each key's last record below ``end_offset``."""
        records = read_keys(self.log)
        return {key: (offset, value) for offset, key, value in records if offset < end_offset}


@attrs.define(eq=False)
class Model:
    """The replicas, and every record that the leader's log has or had."""

    replicas: list[Replica]
    leader: int = 0
    epoch: int = 0
    in_sync: set[int] = attrs.field(factory=lambda: set(range(REPLICAS)))
    committed_end: int = 0
    history: list[tuple[int, bytes, Value]] = attrs.field(factory=list)

    @property
    def leader_log(self) -> PartitionLog:
        return self.replicas[self.leader].log

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.start()

    # -- steps

    async def put(self, key: bytes, value: Value, count: int) -> None:
        for _ in range(count):
            log = self.leader_log
            self.history.append((log.end_offset, key, value))
            data = batch([New(key, value)], timestamp_ms=TIME_MS)
            log.append_leader(memoryview(data), parse(data), self.epoch, TIME_MS)
        self.commit()

    async def roll(self, index: int) -> None:
        self.replicas[index].log.roll(TIME_MS)

    async def replicate(self, index: int, max_bytes: int) -> None:
        """Copy what a follower lacks, one fetch at a time."""
        log, leader = self.replicas[index].log, self.leader_log
        while index != self.leader and log.end_offset < leader.end_offset:
            with leader.read(log.end_offset, max_bytes, end_offset=leader.end_offset) as region:
                log.append_follower(region.read())
            if max_bytes < 1_000:
                break
        if log.end_offset == leader.end_offset:
            self.in_sync.add(index)
        self.commit()

    async def clean(self, index: int, changes: int | None, seed: int | None) -> None:
        if not await self.replicas[index].clean(changes):
            await self.crash(index, seed)

    async def crash(self, index: int, seed: int | None) -> None:
        if self.in_sync == {index}:
            seed = None  # Nobody else has what it has acknowledged.
        else:
            self.in_sync.discard(index)
        await self.replicas[index].crash(seed)
        if index == self.leader:
            await self.lead(min(self.in_sync))
        else:
            await self.reconcile(index)
        self.commit()

    async def lead(self, index: int) -> None:
        """Make a replica in sync the leader of a new epoch; the others truncate."""
        if index not in self.in_sync:
            return
        self.leader, self.epoch = index, self.epoch + 1
        self.leader_log.epochs.assign(self.epoch, self.leader_log.end_offset)
        end = self.leader_log.end_offset
        self.history = [record for record in self.history if record[0] < end]
        for other in range(REPLICAS):
            await self.reconcile(other)
        self.commit()

    async def age(self) -> None:
        """Let tombstones expire, which is safe once every replica has them."""
        for index in range(REPLICAS):
            await self.replicate(index, 1_000)
        await trio.sleep(RETENTION_S + 1)

    # -- what replication does between them

    async def reconcile(self, index: int) -> None:
        """Truncate a follower's log where it diverges from the leader's."""
        replica, leader = self.replicas[index], self.leader_log
        while index != self.leader and replica.log.epochs.latest is not None:
            log = replica.log
            epoch, end = leader.epochs.end_of(log.epochs.latest or 0, leader.end_offset)
            cut = truncation.target(log.epochs, log.end_offset, epoch, end)
            if cut >= log.end_offset:
                break
            assert await replica.manager.truncate(log, cut)

    def commit(self) -> None:
        ends = [self.replicas[index].log.end_offset for index in self.in_sync]
        self.committed_end = max(self.committed_end, min(ends))
        for replica in self.replicas:
            replica.log.high_watermark = min(self.committed_end, replica.log.end_offset)

    # -- checks

    def check(self) -> None:
        expected: dict[bytes, tuple[int, Value]] = {}
        for offset, key, value in self.history:
            if offset < self.committed_end:
                expected[key] = offset, value
        for index in self.in_sync:
            actual = self.replicas[index].contents(self.committed_end)
            assert actual.items() <= expected.items(), f"replica {index}"
            missing = expected.keys() - actual.keys()
            assert all(expected[key][1] is None for key in missing), f"replica {index}"
        tail = [r for r in read_keys(self.leader_log) if r[0] >= self.committed_end]
        assert tail == [record for record in self.history if record[0] >= self.committed_end]


KEYS = st.sampled_from([b"a", b"b", b"c"])
VALUES = st.sampled_from([b"1", b"2" * 60, None])
INDEXES = st.integers(0, REPLICAS - 1)
SEEDS = st.one_of(st.none(), st.integers(0, 1 << 16))
CHANGES = st.one_of(st.none(), st.integers(0, 30))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES, st.integers(1, 6)),
        st.tuples(st.just("put"), KEYS, VALUES, st.integers(1, 6)),
        st.tuples(st.just("replicate"), INDEXES, st.sampled_from([100, 1_000, 1_000])),
        st.tuples(st.just("roll"), INDEXES),
        st.tuples(st.just("clean"), INDEXES, CHANGES, SEEDS),
        st.tuples(st.just("clean"), INDEXES, st.none(), st.none()),
        st.tuples(st.just("crash"), INDEXES, SEEDS),
        st.tuples(st.just("lead"), INDEXES),
        st.tuples(st.just("age")),
    ),
    min_size=5,
    max_size=50,
)


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_replicas_have_the_last_committed_value_of_each_key(steps) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            model = Model([Replica(nursery) for _ in range(REPLICAS)])
            await model.start()
            for name, *arguments in steps:
                await getattr(model, name)(*arguments)
                model.check()
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
