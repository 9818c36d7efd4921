"""Wrong and lost indexes of large segments: other clients are served while they are rebuilt."""

import copy
import itertools
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import attrs
import pytest
import trio

from kwire.drive import run_steps
from kwire.log import timestamp_search
from kwire.log.aborted_transactions import find_aborted
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names, offset_index
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog, create
from kwire.log.recovery import StoredOffsets, opening
from kwire.log.segments import segment as segment_module
from kwire.log.threads import DiskThreads
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, abort_transactions, append, content
from tests.support.log.manager import ID

COUNT: Final = 300
T = TypeVar("T")
CONFIG: Final = LogConfig(index_interval_bytes=100)
IS_CACHED: Final = pytest.mark.parametrize("is_cached", [True, False])
"""Whether the page cache has the log file; otherwise a thread must read it to find the mistake."""
FEW: Final = 10
"""The most reads of a log file that a lookup makes, each for the header of one batch."""


@pytest.fixture(autouse=True)
def each_header_is_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "CHUNK", 70)


class CachingDisk(SimDisk):
    """A disk whose page cache has log files once they have been read."""

    def call(self, kind: str, path: str) -> None:
        super().call(kind, path)
        if kind == "read" and path.endswith(names.LOG):
            self.cached = True


def begin_opening(
    disk: SimDisk, partition: TopicPartition, offsets: StoredOffsets
) -> Generator[None, None, PartitionLog]:
    """Return the steps to open the log in the directory t-0."""
    return opening(
        disk,
        "t-0",
        partition,
        now_ms=TIME_MS,
        config=CONFIG,
        offsets=offsets,
        entries=disk.entries("t-0"),
    )


@attrs.define
class World:
    """The log of a directory, and the reads that the event loop has made."""

    disk: SimDisk
    logs: LogManager
    log: PartitionLog

    def reads(self) -> int:
        """Return how often the event loop has read the log file of the first segment."""
        path = self.log.segments[0].file.path
        return sum(call == ("read", path) for call in self.disk.calls)

    def damage(self) -> bytes:
        """Let the index of the first segment point into batches; return what it was."""
        path = self.log.segments[0].files.path(names.INDEX)
        data = self.disk.read(path)
        pairs = offset_index.entries(data, 0)
        self.disk.write(path, b"".join(offset_index.ENTRY.pack(o, at + 7) for o, at in pairs))
        return data

    def run(self, steps: Generator[Any, Any, T], call: Callable[[Any], Any]) -> T:
        """Run steps whose calls are made in threads, and are not recorded; return their value."""
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                value: T = done.value
                return value
            count = len(self.disk.calls)
            answer = None if step is None else call(step)
            del self.disk.calls[count:]


@asynccontextmanager
async def closed_segment(*, descending: bool = False) -> AsyncIterator[World]:
    """Yield a log whose first segment is closed; the calls of threads are not recorded."""
    disk = CachingDisk()

    async def in_thread(call: Callable[[], None]) -> None:
        await trio.lowlevel.checkpoint()
        count = len(disk.calls)
        call()
        del disk.calls[count:]

    logs = LogManager([LogDirectory(disk, "data")], Clock(), threads=DiskThreads(in_thread))
    await logs.open(lambda _: CONFIG)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        log = logs.create("t", ID, 0, CONFIG)
        for number in range(COUNT):
            time_ms = TIME_MS + (0 if number else COUNT) if descending else TIME_MS + number
            append(log, [b"%d" % number], timestamp_ms=time_ms)
        log.roll(TIME_MS)
        append(log, [b"last"], timestamp_ms=TIME_MS)
        log.high_watermark = log.end_offset
        await logs.flush(log, indexes=True)
        disk.calls.clear()
        yield World(disk, logs, log)
        nursery.cancel_scope.cancel()


@IS_CACHED
@pytest.mark.parametrize("lost", [names.INDEX, names.TIME_INDEX])
async def test_cut_has_a_thread_rebuild_the_index(
    autojump_clock, lost: str, is_cached: bool
) -> None:
    """Invariants 17 and 91."""
    async with closed_segment() as world:
        log, half = world.log, COUNT // 2
        if lost == names.INDEX:
            world.damage()
        else:
            world.disk.remove(log.segments[0].files.path(names.TIME_INDEX))
            log.segments[0].max_timestamp = segment_module.UNKNOWN_TIMESTAMP
        world.disk.cached = is_cached
        assert await world.logs.truncate(log, half)
        assert world.reads() <= 2 * FEW
        assert log.segments[0].largest_timestamp() == TIME_MS + half - 1
        append(log, [b"new"])
        assert content(log) == [*((n, b"%d" % n) for n in range(half)), (half, b"new")]


@IS_CACHED
async def test_search_below_the_log_start_has_a_thread_rebuild_the_index(
    autojump_clock, is_cached: bool
) -> None:
    """Invariants 17 and 91."""
    async with closed_segment(descending=True) as world:
        log = world.log
        log.advance_log_start(COUNT - FEW)
        index = world.damage()
        world.disk.cached = is_cached
        record = world.run(timestamp_search.youngest(log), lambda job: job.call())
        assert record == (COUNT - FEW, TIME_MS)
        assert world.reads() <= 3 * FEW
        assert world.disk.read(log.segments[0].files.path(names.INDEX)) == index


@IS_CACHED
async def test_rebuild_of_producers_has_a_thread_rebuild_the_index(
    autojump_clock, is_cached: bool
) -> None:
    """Invariants 17 and 91: a truncation makes it."""
    async with closed_segment() as world:
        log, half = world.log, COUNT // 2
        log.snapshots.take(half)
        index = world.damage()
        world.disk.cached = is_cached
        world.disk.calls.clear()
        world.run(log.snapshots.rebuilding(COUNT - 1, COUNT), lambda read: read())
        assert world.reads() <= FEW
        assert world.disk.read(log.segments[0].files.path(names.INDEX)) == index


@IS_CACHED
async def test_recovery_rebuilds_the_index_before_the_recovery_point_in_steps(
    autojump_clock, is_cached: bool
) -> None:
    """Invariants 44 and 79: the node's controller answers meanwhile."""
    async with closed_segment() as world:
        disk, log = world.disk, world.log
        log.close()
        index = world.damage()
        disk.cached = is_cached
        stored = StoredOffsets(recovery_point=COUNT, high_watermark=COUNT)
        steps = begin_opening(disk, log.partition, stored)
        disk.calls.clear()
        for _ in steps:
            assert world.reads() <= COUNT // 2
            disk.calls.clear()
            disk.cached = is_cached
        assert disk.read(log.segments[0].files.path(names.INDEX)) == index


@pytest.mark.parametrize("is_clean", [True, False])
async def test_log_without_indexes_is_opened_in_steps(autojump_clock, is_clean: bool) -> None:
    """Invariants 44 and 79: the node's controller answers meanwhile."""
    async with closed_segment() as world:
        disk, log = world.disk, world.log
        index = disk.read(log.segments[0].files.path(names.INDEX))
        log.close()
        suffixes = (names.INDEX, names.TIME_INDEX, names.EPOCHS_FILE)
        for entry in disk.entries("t-0"):
            if entry.name.endswith(suffixes):
                disk.remove(f"t-0/{entry.name}")
        stored = StoredOffsets(clean=is_clean, recovery_point=COUNT, high_watermark=COUNT)
        steps = begin_opening(disk, log.partition, stored)
        while True:
            disk.calls.clear()
            try:
                next(steps)
            except StopIteration as done:
                opened: PartitionLog = done.value
                break
            assert world.reads() <= COUNT // 2
        assert opened.end_offset == COUNT + 1
        assert disk.read(log.segments[0].files.path(names.INDEX)) == index


@pytest.mark.parametrize("is_clean", [True, False])
def test_start_that_ends_while_it_rebuilds_indexes_loses_no_aborted_transactions(
    is_clean: bool,
) -> None:
    """Invariant 64: the next start finds some of the files in place."""
    count, partition = 30, TopicPartition("t", 0)
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", partition, now_ms=TIME_MS, config=CONFIG)
    abort_transactions(log, count)
    log.roll(TIME_MS)
    append(log, [b"last"])
    log.finish()
    log.flush_state.flush()
    for suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX, names.ABORTED):
        disk.remove(log.segments[0].files.path(suffix))

    def start(disk: SimDisk, *, is_clean: bool) -> Generator[None, None, PartitionLog]:
        offsets = StoredOffsets(clean=is_clean, recovery_point=log.end_offset)
        return begin_opening(disk, partition, offsets)

    for step in itertools.count():
        survivor = SimDisk(root=copy.deepcopy(disk.root))
        killed = start(survivor, is_clean=is_clean)
        step_count = sum(1 for _ in itertools.islice(killed, step))
        killed.close()
        opened = run_steps(start(survivor.after_kill(), is_clean=False))
        assert len(find_aborted(opened.segments, 0, opened.end_offset)) == count, step
        if step_count < step:
            assert step > FEW, "the rebuild takes several steps"
            break
