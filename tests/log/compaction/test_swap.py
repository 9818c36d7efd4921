"""Compacted segments take the place of their sources: for readers, after crashes, beside cuts."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import cast

import attrs
import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log import timestamp_search
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadRunner
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.key_logs import put, read_keys, simple_clean, table
from tests.support.log.manager import ID, OTHER
from tests.support.log.threads import at_once

CONFIG = LogConfig(
    segment_bytes=300,
    index_interval_bytes=50,
    cleanup_compact=True,
    cleanup_delete=False,
    file_delete_delay_ms=60_000,
)
SETTINGS = CleanerSettings(backoff_ms=1_000)
LEFT_OVER = (names.CLEANED, names.SWAP, names.DELETED, ".tmp")


async def in_thread(disk: object, call: Callable[[], None]) -> None:
    await at_once(call)


def manager(disk: SimDisk, *, compacts: bool = True, group_size: int = 3) -> LogManager:
    clean = simple_clean(group_size)
    return LogManager(
        [LogDirectory(disk, "dir")],
        Clock(),
        threads=DiskThreads(at_once),
        make_runner=(lambda: ThreadRunner(in_thread, clean)) if compacts else None,
        cleaner_settings=SETTINGS,
    )


@asynccontextmanager
async def running(
    disk: SimDisk, *, compacts: bool = True, config: LogConfig = CONFIG, group_size: int = 3
) -> AsyncIterator[LogManager]:
    logs = manager(disk, compacts=compacts, group_size=group_size)
    await logs.open(lambda topic: config)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()


def fill(log: PartitionLog, count: int = 60, keys: int = 4) -> None:
    """Append updates of a few keys, and delete the first key in the middle and at the end."""
    for number in range(count):
        is_deleted = number % keys == 0 and number % 3 == 0
        put(log, b"key%d" % (number % keys), None if is_deleted else b"value %d" % number)
    put(log, b"key0", None)
    log.roll(TIME_MS)
    put(log, b"last", b"one")
    log.high_watermark = log.end_offset


def present(logs: LogManager) -> PartitionLog:
    log = logs.get("t", 0)
    assert log is not None
    return log


def files(disk: SimDisk, directory: str = "t-0") -> list[str]:
    return sorted(entry.name for entry in disk.entries(directory))


async def test_log_keeps_the_last_value_of_each_key(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        before, size, end = table(log), log.segments.size, log.end_offset
        await trio.sleep(10)
        assert table(log) == before
        assert len(read_keys(log)) == len(before)
        assert log.segments.size < size / 2
        assert (log.log_start, log.end_offset, log.high_watermark) == (0, end, end)
        assert log.clean_state.clean_end == log.segments.active.base_offset
        await trio.sleep(100)
        assert not [name for name in files(disk) if name.endswith(LEFT_OVER)]
    async with running(disk.after_kill()) as logs:
        log = present(logs)
        assert table(log) == before
        assert log.clean_state.clean_end == log.segments.active.base_offset


async def test_second_pass_cleans_what_was_appended_since(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        await trio.sleep(10)
        for _ in range(3):
            fill(log)
            before = table(log)
            await trio.sleep(10)
            assert table(log) == before
            assert len(read_keys(log)) <= len(before) + 1


async def test_read_that_holds_a_source_ends_with_its_bytes(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        with log.read(0, 200, end_offset=log.end_offset) as region:
            data = region.read()
            await trio.sleep(10)
            assert log.clean_state.clean_end is not None
            assert region.read() == data


async def test_paused_search_reads_the_sources_and_their_indexes(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        segment = log.segments[0]
        logs_before = [header.base_offset for _, header in segment.scan()]
        search = timestamp_search.first_at_least(log, TIME_MS)
        await trio.sleep(10)
        assert segment not in log.segments
        assert [header.base_offset for _, header in segment.scan()] == logs_before
        assert segment.locate(logs_before[-1]) is not None
        assert segment.largest_timestamp() == TIME_MS
        segment.reindex()
        assert segment.locate(logs_before[-1]) is not None
        record = timestamp_search.run(search)
        assert record is not None
        assert record.timestamp == TIME_MS
        await trio.sleep(100)
        names_left = files(log.disk)  # type: ignore[arg-type]
        assert not [name for name in names_left if name.endswith(LEFT_OVER)]


CHANGES = range(90)


@pytest.mark.parametrize("changes", CHANGES)
async def test_crash_at_any_step_of_a_swap_loses_and_revives_nothing(
    autojump_clock, changes: int
) -> None:
    """The process dies at a rename, removal or sync of the pass; the power may fail as well.

    A file that an older pass has left does not make a recovery take the group for incomplete.
    """
    disk = SimDisk()
    async with running(disk, compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 24)
        before, end = table(log), log.end_offset
        await logs.flush(log, indexes=True)
        await trio.sleep(100)
        cleaning = next(iter(logs.services.values())).cleaning
        if changes % 2:
            disk.write(f"t-0/{names.stem(0)}{names.TXN_INDEX}{names.CLEANED}", b"")
        disk.changes_left = changes
        with suppress(Killed):
            await cleaning.clean(log, ThreadRunner(in_thread, simple_clean()), SETTINGS)
        is_complete = disk.changes_left > 0
        disk.changes_left = None
        survivors = [disk.power_loss(Random(seed)) for seed in range(6)] + [disk.after_kill()]
    for survivor in survivors:
        async with running(survivor, compacts=False) as logs:
            log = present(logs)
            assert table(log) == before
            assert (log.log_start, log.end_offset) == (0, end)
            offsets = [h.base_offset for segment in log.segments for _, h in segment.scan()]
            assert offsets == sorted(set(offsets))
            assert not [name for name in files(survivor) if name.endswith(LEFT_OVER)]
            clean_end = log.clean_state.clean_end
            assert clean_end is None or len(read_keys(log)) == len(before)
            assert clean_end is not None or not is_complete
    assert is_complete or changes < CHANGES[-1]


async def test_truncation_aborts_the_pass_and_lowers_the_checkpoint(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk, group_size=1) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        await trio.sleep(10)
        clean_end = log.clean_state.clean_end
        assert clean_end is not None
        cut = clean_end - 20
        assert await logs.truncate(log, cut)
        assert log.clean_state.clean_end == log.segments.active.base_offset <= cut
        survivors = [disk.power_loss(Random(seed)) for seed in range(10)]
    for survivor in survivors:
        async with running(survivor, compacts=False) as logs:
            log = present(logs)
            assert (log.clean_state.clean_end or 0) <= cut


async def test_recreated_topic_does_not_inherit_the_checkpoint(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        await trio.sleep(10)
        assert log.clean_state.clean_end
        await logs.delete("t", 0)
        again = logs.create("t", OTHER, 0, attrs.evolve(CONFIG, min_cleanable_dirty_ratio=1.0))
        fill(again)
    for survivor in (disk.after_kill(), *(disk.power_loss(Random(n)) for n in range(8))):
        async with running(survivor, compacts=False) as logs:
            survived = logs.get("t", 0)
            assert survived is None or survived.clean_state.clean_end is None
            log = logs.create("t", OTHER, 0, CONFIG)
            put(log, b"key", b"value")
            await trio.sleep(200)
            assert b"t 0" not in survivor.read(names.CLEANER_OFFSETS)
            assert names.NAMED_AGAIN not in files(survivor)


async def test_deletion_of_a_partition_ends_its_pass(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk, group_size=1) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 200)
        async with trio.open_nursery() as nursery:
            for step in range(200):
                await trio.lowlevel.checkpoint()
                if step == 150:
                    nursery.start_soon(logs.delete, "t", 0)
            await trio.sleep(1.01)
        again = logs.create("t", OTHER, 0, CONFIG)
        fill(again)
        await trio.sleep(100)
        assert table(again)[b"last"] == b"one"
        assert not [name for name in files(disk) if name.endswith(LEFT_OVER)]


async def test_full_disk_leaves_the_log_whole_and_is_tried_again(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        before = table(log)
        disk.fail_at("write", OSError(errno.ENOSPC, "full"), path=names.CLEANED, times=2)
        await trio.sleep(1.5)
        assert log.clean_state.clean_end is None
        assert table(log) == before
        await trio.sleep(10)
        assert log.clean_state.clean_end
        assert table(log) == before


async def test_log_that_could_not_be_looked_at_is_looked_at_again(autojump_clock) -> None:
    """After a restart the age of a log's oldest segment is read from its file."""
    config = attrs.evolve(CONFIG, max_compaction_lag_ms=1_000_000)
    disk = SimDisk()
    async with running(disk, compacts=False, config=config) as logs:
        log = logs.create("t", ID, 0, config)
        fill(log)
        await logs.flush(log, indexes=True)
        await trio.sleep(100)
    disk = disk.after_kill()
    async with running(disk, config=config) as logs:
        log = present(logs)
        log.high_watermark = log.end_offset
        before = table(log)
        for segment in log.segments:
            segment.file.close()
        disk.fail_at("read", OSError(errno.EMFILE, "too many files"), path=names.LOG, times=2)
        await trio.sleep(30)
        assert log.clean_state.clean_end
        assert table(log) == before


async def test_disk_error_of_a_pass_takes_the_directory_offline(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log)
        disk.fail_at("sync", OSError(errno.EIO, "broken"), path=names.CLEANED)
        await trio.sleep(10)
        assert not logs.directories[0].online


async def test_pass_that_began_before_a_cut_replaces_nothing(autojump_clock) -> None:
    """The segments that are written again have the same base offsets, but other records."""
    async with running(SimDisk(), compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        for number in range(6):
            put(log, b"key", b"old %d" % number)
        log.roll(TIME_MS)
        log.high_watermark = log.end_offset
        bases = [segment.base_offset for segment in log.segments]

        async def write_again(disk: object, call: Callable[[], None]) -> None:
            await at_once(call)
            if log.clean_state.removal_count:
                return
            log.truncate_to(0)
            for number in range(6):
                put(log, b"%03d" % number, b"new %d" % number)
            log.roll(TIME_MS)

        cleaning = logs.services[log.disk].cleaning
        runner = ThreadRunner(write_again, simple_clean(group_size=9))
        assert await cleaning.clean(log, runner, SETTINGS) is None
        assert [segment.base_offset for segment in log.segments] == bases
        assert len(table(log)) == 6
        names_left = files(cast(SimDisk, log.disk))
        assert not [name for name in names_left if name.endswith((names.CLEANED, names.SWAP))]


async def test_truncation_waits_for_the_end_of_a_swap(autojump_clock) -> None:
    disk = SimDisk()
    async with running(disk, compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 24)
        cleaning = logs.services[log.disk].cleaning
        is_swapping, may_end = trio.Event(), trio.Event()

        async def wait(disk: object, call: Callable[[], None]) -> None:
            is_swapping.set()
            await may_end.wait()
            await at_once(call)

        cleaning.swap.in_thread = wait
        cut = log.segments[1].base_offset
        is_truncated: list[bool] = []

        async def truncate() -> None:
            is_truncated.append(await logs.truncate(log, cut))

        async with trio.open_nursery() as nursery:
            runner = ThreadRunner(in_thread, simple_clean())
            nursery.start_soon(cleaning.clean, log, runner, SETTINGS)
            await is_swapping.wait()
            nursery.start_soon(truncate)
            await trio.sleep(100)
            truncated_in_the_swap = list(is_truncated)
            may_end.set()
        assert not truncated_in_the_swap
        assert is_truncated == [True]
        assert log.end_offset == cut
        assert log.clean_state.clean_end is None


async def test_retention_waits_for_the_end_of_a_pass(autojump_clock) -> None:
    """It would abort every pass over a large log."""
    config = attrs.evolve(CONFIG, cleanup_delete=True, retention_ms=-1, retention_bytes=0)
    async with running(SimDisk(), compacts=False, config=config) as logs:
        log = logs.create("t", ID, 0, config)
        fill(log, 24)
        may_end = trio.Event()

        async def wait(disk: object, call: Callable[[], None]) -> None:
            await may_end.wait()
            await at_once(call)

        cleaning = logs.services[log.disk].cleaning
        async with trio.open_nursery() as nursery:
            runner = ThreadRunner(wait, simple_clean())
            nursery.start_soon(cleaning.clean, log, runner, SETTINGS)
            await trio.sleep(1)
            assert await logs.retain(log) == 0
            assert log.log_start == 0
            may_end.set()
        assert log.clean_state.clean_end
        assert len(log.segments) == 1  # Deleted at the end of the pass.


@pytest.mark.parametrize("renamed", [0, 1, 3, 6, 9, 10, 11])
async def test_swap_that_fails_midway_takes_the_directory_offline(
    autojump_clock, renamed: int
) -> None:
    """Also for want of room: what was written next would be replaced when a start completes it."""
    disk = SimDisk()
    async with running(disk, compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 24)
        before = table(log)
        cleaning = logs.services[log.disk].cleaning

        async def fill_disk(used: object, call: Callable[[], None]) -> None:
            await at_once(call)
            disk.fail_at("rename", OSError(errno.ENOSPC, "full"), after=renamed, times=99)

        cleaning.swap.in_thread = fill_disk
        with pytest.raises((OSError, KafkaStorageError)):
            await cleaning.clean(log, ThreadRunner(in_thread, simple_clean()), SETTINGS)
        assert not logs.directories[0].online
    async with running(disk.after_kill(), compacts=False) as logs:
        assert table(present(logs)) == before


@pytest.mark.parametrize("changes", range(3, 10))
async def test_crash_while_a_swap_is_given_up_leaves_no_index_without_its_log(
    autojump_clock, changes: int
) -> None:
    """The next start would take such an index for that of the source, which is still there."""
    disk = SimDisk()
    async with running(disk, compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 24)
        before = table(log)
        await logs.flush(log, indexes=True)
        old_file = f"t-0/{names.stem(0)}{names.TXN_INDEX}{names.CLEANED}"
        cleaning = logs.services[log.disk].cleaning

        async def crash(used: object, call: Callable[[], None]) -> None:
            disk.write(old_file, b"")
            disk.fail_at("remove", OSError(errno.ENOSPC, "full"), path=names.CLEANED)
            disk.changes_left = changes
            await at_once(call)

        cleaning.swap.in_thread = crash
        with suppress(Killed, OSError):
            await cleaning.clean(log, ThreadRunner(in_thread, simple_clean()), SETTINGS)
        disk.changes_left = None
        disk.mend()
        survivor = disk.after_kill()
    unfinished = [name for name in files(survivor) if name.endswith(names.SWAP)]
    assert not unfinished or f"{names.stem(0)}{names.LOG}{names.SWAP}" in unfinished
    async with running(survivor, compacts=False) as logs:
        assert table(present(logs)) == before


@pytest.mark.parametrize("removed", range(4))
async def test_swap_that_cannot_be_given_up_takes_the_directory_offline(
    autojump_clock, removed: int
) -> None:
    """A start would complete it, over what was written meanwhile."""
    disk = SimDisk()
    async with running(disk, compacts=False) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        fill(log, 24)
        before = table(log)
        cleaning = logs.services[log.disk].cleaning
        old_file = f"t-0/{names.stem(0)}{names.TXN_INDEX}{names.CLEANED}"

        async def fill_disk(used: object, call: Callable[[], None]) -> None:
            disk.write(old_file, b"")
            disk.fail_at("remove", OSError(errno.ENOSPC, "full"), path=names.CLEANED)
            disk.fail_at("remove", OSError(errno.ENOSPC, "full"), path=names.SWAP, after=removed)
            await at_once(call)

        cleaning.swap.in_thread = fill_disk
        with pytest.raises(OSError, match="full"):
            await cleaning.clean(log, ThreadRunner(in_thread, simple_clean()), SETTINGS)
        assert logs.directories[0].online == (removed == 3)
    async with running(disk.after_kill(), compacts=False) as logs:
        assert table(present(logs)) == before
