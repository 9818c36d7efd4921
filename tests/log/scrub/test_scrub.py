"""The scrub of a broker's directories: what it checks and when, and what a repair restores."""

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kwire.errors import CorruptMessage
from kwire.log.compaction.states import CleaningStates
from kwire.log.config import ScrubSettings
from kwire.log.directories.log_scrub import LogScrub
from kwire.log.directories.segment_checker import ProcessChecker, SegmentChecker
from kwire.log.directories.worker_process import IoLimit, WorkerEnded, WorkerProcess
from kwire.log.disk import Disk, RealDisk
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.types import TopicPartition
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadChecker
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID, config_of, manager
from tests.support.log.threads import at_once

INTERVAL_S = 1000.0


async def in_thread(disk: Disk, call: object) -> None:
    await at_once(call)  # type: ignore[arg-type]


@attrs.define(eq=False)
class Watched:
    """A checker that notes its jobs, and may hold each check until it is released or aborted."""

    jobs: list[SegmentJob] = attrs.field(factory=list)
    release: trio.Event | None = None
    error: Exception | None = None
    aborted_count: int = 0

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        self.jobs.append(job)
        if self.error is not None:
            raise self.error
        if self.release is not None:
            try:
                await self.release.wait()
            except trio.Cancelled:
                self.aborted_count += 1
                raise
        return await ThreadChecker(in_thread).check(disk, root, job)

    async def close(self) -> None: ...

    @property
    def bases(self) -> list[int]:
        """The base offsets of the checked segments, in order."""
        return [job.base_offset for job in self.jobs]


def fill(logs: LogManager, topic: str = "t", count: int = 12) -> PartitionLog:
    """Create a log of several closed segments and flush it."""
    log = logs.create(topic, ID, 0, config_of(topic))
    for number in range(count):
        append(log, [b"value %d" % number])
    log.flush_state.flush()
    log.high_watermark = log.end_offset
    assert len(log.segments) > 3
    return log


@attrs.frozen
class Scrubbed:
    """The logs of one directory, and their scrub."""

    logs: LogManager
    scrubber: LogScrubber

    @property
    def scrub(self) -> LogScrub:
        return self.scrubber.scrubs[0]

    @property
    def states(self) -> CleaningStates:
        return self.logs.services[self.scrub.directory.disk].busy.cleaning


def make_logs(disk: SimDisk | RealDisk, checker: SegmentChecker | None) -> Scrubbed:
    """Return a manager and its scrub; nothing is opened."""
    logs = manager(disk)
    if isinstance(disk, RealDisk):
        logs.directories[0].name = disk.root
    settings = ScrubSettings(interval_s=INTERVAL_S, bytes_per_second=1e9)
    services = logs.services.values()
    return Scrubbed(logs, make_scrubber(services, lambda: checker or Watched(), settings))


@asynccontextmanager
async def running(
    disk: SimDisk | RealDisk, checker: SegmentChecker | None = None
) -> AsyncIterator[Scrubbed]:
    scrubbed = make_logs(disk, checker)
    await scrubbed.logs.open(config_of)
    async with trio.open_nursery() as nursery:
        await nursery.start(scrubbed.logs.run)
        nursery.start_soon(scrubbed.scrubber.run)
        yield scrubbed
        nursery.cancel_scope.cancel()
    scrubbed.logs.abandon()


def damage(log: PartitionLog, number: int = 1, byte: int = 65) -> int:
    """Flip a bit in the first batch of a segment; return the batch's offset."""
    segment = log.segments[number]
    assert isinstance(log.disk, SimDisk)
    log.disk.rot(segment.file.path, byte)
    return segment.base_offset


async def test_each_interval_has_one_pass_over_the_closed_segments(autojump_clock) -> None:
    checker = Watched()
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)
        closed = [segment.base_offset for segment in log.segments[:-1]]
        await trio.sleep(INTERVAL_S * 0.9)
        assert checker.bases == closed
        assert scrubbed.scrub.last_pass_ms >= TIME_MS
        await trio.sleep(INTERVAL_S)
        assert checker.bases == 2 * closed
        assert scrubbed.scrub.byte_count == 2 * sum(s.size for s in log.segments[:-1])
        assert scrubbed.scrubber.damage_counts() == (0, 0)


async def test_segments_that_are_not_synced_are_not_checked(autojump_clock) -> None:
    checker = Watched()
    scrubbed = make_logs(SimDisk(), checker)
    await scrubbed.logs.open(config_of)
    log = fill(scrubbed.logs)
    log.flush_state.recovery_point = log.segments[2].base_offset
    await scrubbed.scrub.run_pass(checker)
    assert checker.bases == [segment.base_offset for segment in log.segments[:2]]


async def test_damage_is_reported_once_and_never_read(
    autojump_clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 80."""
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        called: list[PartitionLog] = []
        scrubbed.scrubber.subscribe(lambda log, ranges: called.append(log))
        offset = damage(log)
        with caplog.at_level(logging.ERROR):
            await trio.sleep(INTERVAL_S * 2)
        (line,) = [r.getMessage() for r in caplog.records if "damaged batch" in r.getMessage()]
        assert f"offset={offset} " in line
        assert f"dir0/t-0/{offset:020}.log position=0" in line
        assert line.endswith("reason=wrong checksum")
        assert called == [log, log]
        assert scrubbed.scrubber.damage_counts() == (1, 1)
        with pytest.raises(CorruptMessage):
            log.read(offset, 1, end_offset=log.end_offset)


async def test_restored_batch_is_read_again(autojump_clock) -> None:
    """Invariant 80."""
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        before, segment = content(log), log.segments[1]
        assert isinstance(log.disk, SimDisk)
        data = bytes(log.disk.inode(segment.file.path).data)
        damage(log)
        scrub = scrubbed.scrub
        await scrub.run_pass(Watched())
        (damaged,) = list(segment.damage)
        log.disk.inode(segment.file.path).modified_ms = segment.modified_ms = TIME_MS - 5
        restored = data[damaged.position : damaged.end_position]
        assert await scrub.restore(log, damaged, restored, damaged.end_offset)
        assert content(log) == before
        assert bytes(log.disk.inode(segment.file.path).data) == data
        assert log.disk.inode(segment.file.path).modified_ms == TIME_MS - 5
        assert (scrubbed.scrubber.damage_counts(), scrub.restored_count) == ((0, 0), 1)
        assert not await scrub.restore(log, damaged, restored, damaged.end_offset)


async def test_restored_batch_survives_a_power_loss(autojump_clock) -> None:
    """Invariant 78."""
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        disk, path = log.disk, log.segments[1].file.path
        assert isinstance(disk, SimDisk)
        data = bytes(disk.inode(path).data)
        damage(log)
        await scrubbed.scrub.run_pass(Watched())
        (damaged,) = list(log.segments[1].damage)
        restored = data[damaged.position : damaged.end_position]
        await scrubbed.scrub.restore(log, damaged, restored, damaged.end_offset)
        for seed in range(20):
            assert disk.power_loss(Random(seed)).inode(path).data == data


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize(
    ("written", "changes"), [(0, None), (1, None), (0.5, None), (0.99, None), (2, 0), (2, 1)]
)
async def test_crash_in_a_repair_leaves_damage_that_the_next_repair_restores(
    autojump_clock, written: float, changes: int | None, loses_power: bool
) -> None:
    """Invariants 78 and 80: no reader ever gets bytes that are neither the old nor the new ones.

    ``written`` is the number of bytes that reach the file, or their share; ``changes`` the number
    of completed syncs.
    """
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        before, segment, disk = content(log), log.segments[1], log.disk
        assert isinstance(disk, SimDisk)
        path, offset = segment.file.path, segment.base_offset
        data = bytes(disk.inode(path).data)
        await scrubbed.logs.services[disk].checkpoints.write(names.RECOVERY_POINTS)
        damage(log)
        await scrubbed.scrub.run_pass(Watched())
        (damaged,) = list(segment.damage)
        restored, end = data[damaged.position : damaged.end_position], damaged.end_offset
        size = len(restored)
        disk.cut = 1 if written == 1 else int(written * size)
        disk.changes_left = changes
        with suppress(Killed):
            await scrubbed.scrub.restore(log, damaged, restored, end)
        disk.cut = disk.changes_left = None
        survivors = [disk.after_kill()]
        if loses_power:
            survivors = [disk.power_loss(Random(seed)) for seed in range(5)]
    for survivor in survivors:
        async with running(survivor) as scrubbed:
            log = scrubbed.logs.directories[0].logs[TopicPartition("t", 0)]
            log.high_watermark = log.end_offset
            scrub = scrubbed.scrub
            await scrub.run_pass(Watched())
            for damaged in scrub.damage_of(log):
                assert (damaged.first_offset, damaged.end_offset) == (offset, end)
                with pytest.raises(CorruptMessage):
                    log.read(offset, 1, end_offset=log.end_offset)
                assert await scrub.restore(log, damaged, restored, end)
            assert content(log) == before
            assert bytes(survivor.inode(path).data) == data


async def test_part_of_a_range_can_be_restored(autojump_clock) -> None:
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        segment = log.segments[1]
        first, second = (header for _, header in segment.scan())
        assert isinstance(log.disk, SimDisk)
        data = bytes(log.disk.inode(segment.file.path).data)
        damage(log)
        damage(log, 1, first.size + 65)
        scrub = scrubbed.scrub
        await scrub.run_pass(Watched())
        (damaged,) = list(segment.damage)
        assert await scrub.restore(log, damaged, data[: first.size], first.next_offset)
        assert (damaged.first_offset, damaged.position) == (second.base_offset, first.size)
        log.read(first.base_offset, 1, end_offset=log.end_offset).close()
        with pytest.raises(CorruptMessage):
            log.read(second.base_offset, 1, end_offset=log.end_offset)


async def test_repaired_log_is_compacted_again(autojump_clock) -> None:
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        states = scrubbed.states
        assert isinstance(log.disk, SimDisk)
        data = bytes(log.disk.inode(log.segments[1].file.path).data)
        damage(log)
        await scrubbed.scrub.run_pass(Watched())
        states.note_uncleanable(log)
        (damaged,) = list(log.segments[1].damage)
        restored = data[damaged.position : damaged.end_position]
        await scrubbed.scrub.restore(log, damaged, restored, damaged.end_offset)
        assert states.may_clean(log)


async def test_claimed_log_is_not_checked_until_it_is_free(autojump_clock) -> None:
    checker = Watched()
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)
        other = fill(scrubbed.logs, "u")
        async with scrubbed.logs.services[log.disk].busy.claim(log):
            with trio.move_on_after(INTERVAL_S * 0.9):
                await scrubbed.scrub.run_pass(checker)
        assert {job.directory for job in checker.jobs} == {other.segments.directory}
        checker.jobs.clear()
        await scrubbed.scrub.run_pass(checker)
        assert {job.directory for job in checker.jobs} == {"t-0", "u-0"}


async def test_check_gives_way_to_a_truncation(autojump_clock) -> None:
    """The truncation does not wait for the check, and its result does not count."""
    checker = Watched(release=trio.Event())
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)
        offset = damage(log, 0)
        await trio.sleep(70)
        assert checker.bases == [0]
        began = trio.current_time()
        await scrubbed.logs.truncate(log, offset + 1)
        assert trio.current_time() == began
        assert checker.aborted_count == 1
        assert checker.release is not None
        checker.release.set()
        await trio.sleep(10)
        assert not log.segments[0].damage


async def test_slow_check_survives_checks_of_retention(autojump_clock) -> None:
    """A check that each run of retention aborts would never end at a low rate."""
    checker = Watched(release=trio.Event())
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)
        await trio.sleep(INTERVAL_S - 50)
        assert (checker.bases, checker.aborted_count) == ([0], 0)
        await scrubbed.logs.retain(log)
        assert checker.aborted_count == 0
        log.advance_log_start(log.segments[2].base_offset)
        await scrubbed.logs.retain(log)
        await trio.testing.wait_all_tasks_blocked()
        assert checker.aborted_count == 1


async def test_check_of_a_deleted_log_is_aborted(autojump_clock) -> None:
    checker = Watched(release=trio.Event())
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)
        await trio.sleep(70)
        scrubbed.logs.delete_soon(log)
        await trio.sleep(10)
        assert (checker.aborted_count, checker.bases) == (1, [0])


async def test_result_from_before_a_removal_is_dropped(autojump_clock) -> None:
    checker = Watched()
    async with running(SimDisk(), checker) as scrubbed:
        log = fill(scrubbed.logs)

        class Removing(Watched):
            async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
                report = await super().check(disk, root, job)
                log.drop_segments(1)
                return report

        damage(log, 0)
        removed = log.segments[0]
        removing = Removing()
        await scrubbed.scrub._check(log, removed, removing)
        assert removed.damage == ()
        assert scrubbed.scrubber.damage_counts() == (0, 0)


async def test_failed_read_takes_the_directory_offline(autojump_clock) -> None:
    checker = Watched(error=OSError(5, "Input/output error"))
    async with running(SimDisk(), checker) as scrubbed:
        fill(scrubbed.logs)
        await trio.sleep(INTERVAL_S * 3)
        assert not scrubbed.logs.directories[0].online
        assert len(checker.jobs) == 1
        assert scrubbed.scrub.last_pass_ms == -1


async def test_worker_that_keeps_ending_ends_the_pass(autojump_clock) -> None:
    checker = Watched(error=WorkerEnded("killed"))
    async with running(SimDisk(), checker) as scrubbed:
        for number in range(6):
            fill(scrubbed.logs, f"t{number}")
        await trio.sleep(INTERVAL_S * 0.9)
        assert len(checker.jobs) == 3
        assert scrubbed.scrub.last_pass_ms == -1


async def test_damage_of_deleted_records_needs_no_repair(autojump_clock) -> None:
    async with running(SimDisk()) as scrubbed:
        log = fill(scrubbed.logs)
        damage(log)
        await scrubbed.scrub.run_pass(Watched())
        assert scrubbed.scrub.damage_of(log)
        log.advance_log_start(log.segments[2].base_offset)
        assert not scrubbed.scrub.damage_of(log)


async def test_worker_that_ends_leaves_the_log_for_the_next_pass(autojump_clock) -> None:
    checker = Watched(error=WorkerEnded("killed"))
    async with running(SimDisk(), checker) as scrubbed:
        fill(scrubbed.logs)
        fill(scrubbed.logs, "u")
        await trio.sleep(INTERVAL_S * 0.9)
        assert len(checker.jobs) == 2
        assert scrubbed.logs.directories[0].online


async def test_process_checks_segments_on_a_real_disk(tmp_path: Path) -> None:
    """The clock is the real one: the process is waited for, not the time."""
    async with running(RealDisk(str(tmp_path))) as scrubbed:
        log = fill(scrubbed.logs)
        segment = log.segments[1]
        file = tmp_path / segment.file.path
        data = bytearray(file.read_bytes())
        data[65] ^= 1
        file.write_bytes(data)
        await scrubbed.logs.flush(log, indexes=True)
        index = tmp_path / log.segments[2].files.path(names.TIME_INDEX)
        times = index.read_bytes()
        index.write_bytes(bytes(len(times)))
        checker = ProcessChecker()
        with trio.fail_after(60):
            await scrubbed.scrub.run_pass(checker)
        await checker.close()
        assert [each.position for each in segment.damage] == [0]
        assert scrubbed.scrubber.damage_counts() == (1, 1)
        assert scrubbed.scrubber.index_counts() == (1, 1)
        assert index.read_bytes() == times


def job(directory: str) -> SegmentJob:
    return SegmentJob(
        directory=directory, base_offset=0, end_offset=9, size=70, epochs=(), bytes_per_second=1.0
    )


async def test_segment_that_is_gone_does_not_end_the_process(tmp_path: Path) -> None:
    checker = ProcessChecker()
    disk = RealDisk(str(tmp_path))
    with trio.fail_after(60):
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                await checker.check(disk, str(tmp_path), job("t-0"))
        await checker.close()


async def test_process_that_ends_is_an_error_of_the_check(tmp_path: Path) -> None:
    checker = ProcessChecker(WorkerProcess((sys.executable, "-c", "import sys; sys.exit(3)")))
    with trio.fail_after(60), pytest.raises(WorkerEnded):
        await checker.check(RealDisk(str(tmp_path)), str(tmp_path), job("t-0"))


async def test_aborted_check_ends_its_process_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    """At a byte per second, the check itself would take a minute."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(bytes(70))
    checker = ProcessChecker()
    with trio.fail_after(60):
        with trio.move_on_after(1) as scope:
            await checker.check(RealDisk(str(tmp_path)), str(tmp_path), job("t-0"))
        assert scope.cancelled_caught
        await checker.close()


@pytest.mark.slow
async def test_small_segments_count_together_for_the_rate(tmp_path: Path) -> None:
    """Each of them is too small to be reported on its own, at 500 bytes a message."""

    class Recording(IoLimit):
        async def wait(self, size: int) -> None:
            used.append(size)

    used = list[int]()
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(bytes(70))
    checker = ProcessChecker(WorkerProcess(limit=Recording()))
    disk, root = RealDisk(str(tmp_path)), str(tmp_path)
    with trio.fail_after(60):
        for _ in range(100):
            await checker.check(disk, root, attrs.evolve(job("t-0"), bytes_per_second=10_000.0))
    await checker.close()
    assert all(500 <= size < 600 for size in used)
    assert sum(used) == pytest.approx(7000, abs=600)


def test_reading_from_the_disk_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    data = Random(1).randbytes(1 << 20)
    file.write([data], 0)
    file.sync()
    was_cached = file.is_cached(0, len(data))
    assert file.read_stored(5, 4 << 20) == data[5:]
    assert file.is_cached(0, len(data)) == was_cached
    file.pin()

    def is_left_uncached() -> bool:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        was_cached = file.is_cached(0, len(data))  # Some file systems keep their pages.
        assert file.read_stored(0, len(data)) == data
        return file.is_cached(0, len(data)) == was_cached

    # The system may keep a page for a moment, because something else is looking at it.
    assert any(is_left_uncached() for _ in range(5))
    file.unpin()
