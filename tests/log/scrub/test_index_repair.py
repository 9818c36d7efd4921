"""A scrub rebuilds wrong index files, whatever happens to their segment meanwhile."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import attrs
import pytest
import trio

from kwire.log.aborted_transactions import find_aborted
from kwire.log.cold_lookups import WouldWait
from kwire.log.config import LogConfig, ScrubSettings
from kwire.log.disk import Disk
from kwire.log.formats import names, txn_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.inspection.index_check import WrongEntry
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.log.segments import warming
from kwire.log.segments.segment import Repair, Segment
from kwire.types import TopicPartition
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadChecker
from tests.support.log.batches import content, offset_for_timestamp
from tests.support.log.manager import ID, manager
from tests.support.log.scrubbed import fill_with_transactions
from tests.support.log.threads import at_once

CONFIG = LogConfig(index_interval_bytes=200, file_delete_delay_ms=1_000)
SUFFIXES = [names.INDEX, names.TIME_INDEX, names.TXN_INDEX]
COUNT = 60


async def in_thread(disk: Disk, call: Callable[[], None]) -> None:
    await at_once(call)


@attrs.frozen
class Scrubbed:
    """The log of a directory, and the scrub."""

    logs: LogManager
    scrubber: LogScrubber
    disk: SimDisk

    @property
    def log(self) -> PartitionLog:
        return self.logs.directories[0].logs[TopicPartition("t", 0)]

    @property
    def segment(self) -> Segment:
        """The closed segment whose files are damaged."""
        return self.log.segments[1]

    def path(self, suffix: str) -> str:
        return self.segment.files.path(suffix)

    def damage(self, suffix: str) -> bytes:
        """Change a field of an entry; return the intact content."""
        data = self.disk.read(self.path(suffix))
        changed = bytearray(data)
        changed[-1 if suffix != names.TXN_INDEX else 9] ^= 64
        self.disk.write(self.path(suffix), bytes(changed))
        self.disk.sync(self.path(suffix))
        return data

    async def run_pass(self) -> None:
        await self.scrubber.scrubs[0].run_pass(ThreadChecker(in_thread))

    def during_rebuild(self, act: Callable[[], Awaitable[object]]) -> None:
        """Call a function at the end of the first thread of a rebuild that has written a file."""
        indexes, is_first = self.scrubber.scrubs[0].indexes, True

        async def run(disk: Disk, call: Callable[[], None]) -> None:
            nonlocal is_first
            await at_once(call)
            if is_first and self.leftovers():
                is_first = False
                await act()

        indexes.in_thread = run

    def leftovers(self) -> list[str]:
        """Return the names of unfinished files."""
        return [path for path in self.disk.files if ".tmp" in path]


@asynccontextmanager
async def running(disk: SimDisk) -> AsyncIterator[Scrubbed]:
    logs = manager(disk)
    await logs.open(lambda topic: CONFIG)
    settings = ScrubSettings(interval_s=1e6, bytes_per_second=1e9)
    scrubber = make_scrubber(logs.services.values(), lambda: ThreadChecker(in_thread), settings)
    scrubbed = Scrubbed(logs, scrubber, disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        if not logs.directories[0].logs:
            log = logs.create("t", ID, 0, CONFIG)
            fill_with_transactions(log, COUNT)
            log.high_watermark = log.end_offset
            await logs.flush(log, indexes=True)
            await logs.services[disk].checkpoints.write(names.RECOVERY_POINTS)
        yield scrubbed
        nursery.cancel_scope.cancel()
    logs.abandon()


def answers(log: PartitionLog) -> tuple[object, list[AbortedTxn], list[object]]:
    """Return all records, all aborted transactions, and searches by timestamp."""
    log.high_watermark = log.end_offset
    times = [segment.largest_timestamp() for segment in log.segments]
    return (
        content(log),
        find_aborted(log.segments, 0, log.end_offset),
        [offset_for_timestamp(log, time) for time in times],
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_wrong_index_is_reported_and_rebuilt(
    autojump_clock, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 79."""
    async with running(SimDisk()) as scrubbed:
        before = answers(scrubbed.log)
        data = scrubbed.damage(suffix)
        await scrubbed.run_pass()
        assert scrubbed.disk.read(scrubbed.path(suffix)) == data
        assert scrubbed.scrubber.index_counts() == (1, 1)
        path = f"dir0/{scrubbed.path(suffix)}"
        wrong, rebuilt = (r for r in caplog.records if path in r.getMessage())
        assert wrong.levelno == logging.ERROR
        assert wrong.getMessage().startswith(f"wrong index file={path} position=")
        assert " reason=" in wrong.getMessage()
        assert f"rebuilt index file={path}" == rebuilt.getMessage()
        await scrubbed.run_pass()
        assert scrubbed.scrubber.index_counts() == (1, 1)
        assert answers(scrubbed.log) == before
        assert not scrubbed.leftovers()


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_lost_index_is_rebuilt(autojump_clock, suffix: str) -> None:
    async with running(SimDisk()) as scrubbed:
        before, data = answers(scrubbed.log), scrubbed.disk.read(scrubbed.path(suffix))
        scrubbed.disk.remove(scrubbed.path(suffix))
        scrubbed.segment.indexes.aborted.drop()
        await scrubbed.run_pass()
        assert scrubbed.disk.read(scrubbed.path(suffix)) == data
        assert answers(scrubbed.log) == before


async def test_intact_indexes_are_left_alone(autojump_clock) -> None:
    async with running(SimDisk()) as scrubbed:
        scrubbed.disk.calls.clear()
        await scrubbed.run_pass()
        assert not [kind for kind, _ in scrubbed.disk.calls if kind in ("write", "rename")]
        assert scrubbed.scrubber.index_counts() == (0, 0)


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_list_of_aborted_transactions_is_rebuilt_without_a_snapshot(
    autojump_clock, is_damaged: bool
) -> None:
    """Invariant 64: transactions that began before the segment are in the list too."""
    async with running(SimDisk()) as scrubbed:
        base_offset = scrubbed.segment.base_offset
        intact = scrubbed.damage(names.TXN_INDEX)
        assert any(entry.first_offset < base_offset for entry in txn_index.entries(intact))
        if is_damaged:
            scrubbed.disk.write(scrubbed.path(names.SNAPSHOT), b"damaged")
        else:
            scrubbed.log.snapshots.remove(base_offset)
        await scrubbed.run_pass()
        assert scrubbed.scrubber.index_counts() == (1, 1)
        assert scrubbed.disk.read(scrubbed.path(names.TXN_INDEX)) == intact
        await scrubbed.run_pass()
        assert scrubbed.scrubber.index_counts() == (1, 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_retention_during_a_rebuild(autojump_clock, suffix: str) -> None:
    """Invariant 79: the files of the removed segment, and a newer one's, stay as they are."""
    async with running(SimDisk()) as scrubbed:
        scrubbed.damage(suffix)
        log, end_offset = scrubbed.log, scrubbed.log.segments[2].base_offset

        async def remove() -> None:
            log.advance_log_start(end_offset)
            assert await scrubbed.logs.retain(log) == 2

        scrubbed.during_rebuild(remove)
        await scrubbed.run_pass()
        assert [segment.base_offset for segment in log.segments] == [end_offset]
        assert not scrubbed.leftovers()
        await trio.sleep(100)
        assert not [
            path
            for path in scrubbed.disk.files
            if path.startswith("t-0/00") and int(path[4:24]) < end_offset
        ]


@pytest.mark.parametrize("offset", [1, COUNT // 2, COUNT])
@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_truncation_during_a_rebuild(autojump_clock, suffix: str, offset: int) -> None:
    """Invariants 79 and 19: the cut segment gets no entries of the removed batches."""
    async with running(SimDisk()) as scrubbed:
        base_offset = scrubbed.segment.base_offset
        records, aborted, _ = answers(scrubbed.log)
        scrubbed.damage(suffix)
        log = scrubbed.log

        async def cut() -> None:
            assert await scrubbed.logs.truncate(log, base_offset + offset)

        scrubbed.during_rebuild(cut)
        await scrubbed.run_pass()
        assert not scrubbed.leftovers()
        assert isinstance(records, list)
        end_offset = base_offset + offset
        assert log.end_offset == end_offset
        assert content(log) == [pair for pair in records if pair[0] < end_offset]
        await scrubbed.logs.flush(log, indexes=True)
        assert scrubbed.disk.read(scrubbed.path(names.LOG))
        expected = [entry.last_offset for entry in aborted if entry.last_offset < end_offset]
        entries = find_aborted(log.segments, 0, log.end_offset)
        assert [entry.last_offset for entry in entries] == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_deletion_during_a_rebuild(autojump_clock, suffix: str) -> None:
    async with running(SimDisk()) as scrubbed:
        scrubbed.damage(suffix)

        async def delete() -> None:
            scrubbed.logs.delete_soon(scrubbed.log)
            await trio.sleep(100)

        scrubbed.during_rebuild(delete)
        await scrubbed.run_pass()
        await trio.sleep(100)
        assert scrubbed.logs.directories[0].online
        assert not [path for path in scrubbed.disk.files if path.startswith("t-0")]


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_segment_that_is_compacted_during_a_rebuild_keeps_its_new_indexes(
    autojump_clock, suffix: str
) -> None:
    """Invariant 79."""
    async with running(SimDisk()) as scrubbed:
        old = scrubbed.segment
        scrubbed.damage(suffix)
        log = scrubbed.log
        new = {each: b"new " + each.encode() for each in (names.LOG, *SUFFIXES)}

        async def swap() -> None:
            old.mark_deleted(names.SEGMENT_SUFFIXES, ".1" + names.DELETED)
            for each, data in new.items():
                scrubbed.disk.write(f"t-0/{names.stem(old.base_offset)}{each}", data)
            log.segments.replace(
                [old], [Segment(log.disk, "t-0", old.base_offset, len(new[names.LOG]))]
            )

        scrubbed.during_rebuild(swap)
        await scrubbed.scrubber.scrubs[0].indexes.repair(
            log, old, await wrong_entries(scrubbed, old)
        )
        assert {each: scrubbed.disk.read(scrubbed.path(each)) for each in new} == new
        assert not scrubbed.leftovers()


async def wrong_entries(scrubbed: Scrubbed, segment: Segment) -> tuple[WrongEntry, ...]:
    """Run a pass without rebuilds, and return what it finds in a segment."""
    reports: list[SegmentReport] = []

    class Noting(ThreadChecker):
        async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
            report = await super().check(disk, root, job)
            if job.base_offset == segment.base_offset:
                reports.append(report)
            return attrs.evolve(report, wrong=())

    await scrubbed.scrubber.scrubs[0].run_pass(Noting(in_thread))
    (report,) = reports
    assert report.wrong
    return report.wrong


async def test_lookup_may_rebuild_the_same_index_meanwhile(autojump_clock) -> None:
    """Invariant 79."""
    async with running(SimDisk()) as scrubbed:
        before, data = answers(scrubbed.log), scrubbed.damage(names.INDEX)
        segment = scrubbed.segment
        offset = scrubbed.log.segments[2].base_offset - 1

        async def look_up() -> None:
            job = warming.lookups(segment, offset)
            with suppress(WouldWait):
                segment.locate(offset, wait=False)
            job()
            assert segment.locate(offset) is not None

        scrubbed.during_rebuild(look_up)
        await scrubbed.run_pass()
        assert scrubbed.disk.read(scrubbed.path(names.INDEX)) == data
        assert answers(scrubbed.log) == before
        assert not scrubbed.leftovers()


async def test_threads_that_build_the_same_indexes_share_no_file(autojump_clock) -> None:
    """Invariant 79: one would write to the file that the other's result has become."""
    async with running(SimDisk()) as scrubbed:
        data, segment = scrubbed.damage(names.INDEX), scrubbed.segment
        repair = Repair(segment)
        slow = repair.building()
        while not scrubbed.leftovers():
            next(slow)
        repair.build()
        repair.replace_indexes(segment)
        for _ in slow:
            assert scrubbed.disk.read(scrubbed.path(names.INDEX)) == data
        assert scrubbed.disk.read(scrubbed.path(names.INDEX)) == data
        assert not scrubbed.leftovers()


async def test_full_disk_leaves_a_wrong_list_of_aborted_transactions(autojump_clock) -> None:
    async with running(SimDisk()) as scrubbed:
        scrubbed.damage(names.TXN_INDEX)
        capacity, scrubbed.disk.capacity = scrubbed.disk.capacity, 0
        await scrubbed.run_pass()
        assert scrubbed.logs.directories[0].online
        scrubbed.disk.capacity = capacity
        await scrubbed.run_pass()
        assert scrubbed.scrubber.index_counts() == (2, 1)
        assert not scrubbed.leftovers()


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_crash_in_a_rebuild_leaves_an_index_that_the_next_pass_rebuilds(
    autojump_clock, suffix: str, loses_power: bool
) -> None:
    """Invariants 78 and 79: at worst the index is lost, and no answer is wrong afterwards."""
    changes, has_crashed = 0, True
    while has_crashed:
        async with running(SimDisk()) as scrubbed:
            before, data = answers(scrubbed.log), scrubbed.damage(suffix)
            path, disk = scrubbed.path(suffix), scrubbed.disk
            disk.changes_left, has_crashed = changes, False
            try:
                await scrubbed.run_pass()
            except Killed:
                has_crashed = True
            disk.changes_left = None
            survivors = [disk.after_kill()]
            if loses_power:
                survivors = [disk.power_loss(Random(seed)) for seed in range(5)]
        for survivor in survivors:
            async with running(survivor) as scrubbed:
                assert not scrubbed.leftovers()
                await scrubbed.run_pass()
                assert survivor.read(path) == data
                assert answers(scrubbed.log) == before
        changes += 1
    assert changes > 2
