"""Another replica's batches take the place of a compacted log's closed segments as a whole."""

from contextlib import suppress
from functools import partial
from random import Random

import attrs
import pytest
import trio

from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.move_rules import MoveRules
from kwire.log.directories.prefix_copy import CopyVoid, copying_prefix
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.records.header import headers
from simulation.disk import Killed, SimDisk
from simulation.log.thread_workers import ThreadRunner
from tests.support.log import moving
from tests.support.log.batches import TIME_MS, end_transaction
from tests.support.log.key_logs import put, read_keys, simple_clean, table
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=50,
    cleanup_compact=True,
    cleanup_delete=False,
    delete_retention_ms=60_000,
    file_delete_delay_ms=60_000,
)
running = partial(moving.running, config=CONFIG)
SETTINGS = CleanerSettings()


async def in_thread(disk: object, call: object) -> None:
    await at_once(call)  # type: ignore[arg-type]


def service_of(logs: LogManager) -> DirectoryService:
    (service,) = logs.services.values()
    return service


def fill(log: PartitionLog) -> None:
    """Append values of a few keys and delete all but one of the keys."""
    for number in range(40):
        value = None if number >= 30 and number % 5 else b"value %d" % number
        put(log, b"key%d" % (number % 5), value)
    log.roll(TIME_MS)
    put(log, b"last", b"one")
    log.high_watermark = log.end_offset


async def new_log(logs: LogManager, *, compacts: bool) -> PartitionLog:
    log = logs.create("t", ID, 0, CONFIG)
    fill(log)
    await logs.flush(log, indexes=True)
    if compacts:
        runner = ThreadRunner(in_thread, simple_clean())
        await service_of(logs).cleaning.clean(log, runner, SETTINGS)
    return log


async def copy(logs: LogManager, log: PartitionLog, other: PartitionLog) -> None:
    """Replace a log's closed segments by those of another log."""
    async with copying_prefix(logs.services, log) as prefix:
        for segment in other.segments:
            data = segment.file.read(0, segment.size)
            batches = [b for b in headers(data) if b[1].base_offset < prefix.end_offset]
            await prefix.append(data, batches)
        await prefix.finish()


def present(logs: LogManager) -> PartitionLog:
    log = logs.get("t", 0)
    assert log is not None
    return log


def assert_in_order(log: PartitionLog) -> None:
    offsets = [h.base_offset for segment in log.segments for _, h in segment.scan()]
    assert offsets == sorted(set(offsets))
    left_over = (names.CLEANED, names.SWAP)
    entries = [entry.name for entry in log.disk.entries(log.segments.directory)]
    assert not [name for name in entries if name.endswith(left_over)]


async def test_uncleaned_batches_of_another_replica_replace_the_cleaned_ones(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=True)
        other = await new_log(others, compacts=False)
        before = table(log)
        end_offset, active = log.end_offset, log.segments.active
        await copy(logs, log, other)
        assert read_keys(log) == read_keys(other)
        assert (log.end_offset, log.segments.active) == (end_offset, active)
        assert all(s.size <= CONFIG.segment_bytes for s in log.segments)
        assert len(log.segments) > 3
        # A later pass has to map the copied values again: their tombstones must not go first.
        await trio.sleep(100)
        runner = ThreadRunner(in_thread, clean)
        for _ in range(2):
            await service_of(logs).cleaning.clean(log, runner, SETTINGS)
            put(log, b"more", b"value")
            log.roll(TIME_MS)
            log.high_watermark = log.end_offset
            await trio.sleep(100)
        assert table(log) == {**before, b"more": b"value"}
    async with running(disk.after_kill()) as logs:
        assert table(present(logs)) == {**before, b"more": b"value"}


async def test_copy_ends_at_the_active_segment_even_if_its_last_batches_were_removed(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=False)
        other = await new_log(others, compacts=True)
        before = table(log)
        await copy(logs, log, other)
        assert read_keys(log) == read_keys(other)
        closed = log.segments[-2]
        assert [h.next_offset for _, h in closed.scan()][-1] == log.segments.active.base_offset
    async with running(disk.after_kill()) as logs:
        assert table(present(logs)) == before


CHANGES = range(190)


@pytest.mark.parametrize("changes", CHANGES)
async def test_crash_at_any_step_of_a_copy_mixes_no_segments(autojump_clock, changes: int) -> None:
    """A value of the other replica would come back where this one has removed its tombstone."""
    disk = SimDisk()
    async with running(disk) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=True)
        other = await new_log(others, compacts=False)
        before, old, new = table(log), read_keys(log), read_keys(other)
        disk.changes_left = changes
        with suppress(Killed):
            await copy(logs, log, other)
        is_complete = disk.changes_left > 0
        disk.changes_left = None
        survivors = [disk.power_loss(Random(seed)) for seed in range(3)] + [disk.after_kill()]
    for survivor in survivors:
        async with running(survivor) as logs:
            log = present(logs)
            assert table(log) == before
            assert read_keys(log) in (old, new)
            assert read_keys(log) == new or not is_complete
            assert read_keys(log) == old or not log.clean_state.clean_end
            assert_in_order(log)
    assert is_complete or changes < CHANGES[-1]


async def test_copy_that_takes_longer_than_tombstones_stay_is_dropped(autojump_clock) -> None:
    async with running(SimDisk()) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=True)
        other = await new_log(others, compacts=False)
        before = read_keys(log)
        async with copying_prefix(logs.services, log) as prefix:
            data = other.segments[0].file.read(0, other.segments[0].size)
            await prefix.append(data, list(headers(data)))
            await trio.sleep(CONFIG.delete_retention_ms / 1000 + 1)
            with pytest.raises(CopyVoid, match=r"delete\.retention\.ms"):
                await prefix.append(b"", [])
            with pytest.raises(CopyVoid):
                await prefix.finish()
        assert read_keys(log) == before
        assert_in_order(log)


async def test_copy_of_a_log_that_was_cut_meanwhile_is_dropped(autojump_clock) -> None:
    async with running(SimDisk()) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=False)
        other = await new_log(others, compacts=False)
        async with copying_prefix(logs.services, log) as prefix:
            data = other.segments[0].file.read(0, other.segments[0].size)
            await prefix.append(data, list(headers(data)))
            assert await logs.truncate(log, log.segments.active.base_offset - 1)
            for _ in range(3):
                put(log, b"key", b"of another leader")
            log.roll(TIME_MS)
            with pytest.raises(CopyVoid, match="was truncated"):
                await prefix.append(b"", [])
            with pytest.raises(CopyVoid):
                await prefix.finish()
        assert table(log)[b"key"] == b"of another leader"
        assert_in_order(log)


async def test_log_whose_active_segment_is_not_committed_is_not_copied(autojump_clock) -> None:
    """The other replica might not have the last of the closed segments."""
    async with running(SimDisk()) as logs:
        log = await new_log(logs, compacts=False)
        log.high_watermark = log.segments.active.base_offset - 1
        with pytest.raises(CopyVoid):
            async with copying_prefix(logs.services, log):
                pass


async def test_log_whose_tombstones_do_not_stay_is_not_copied(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        log = await new_log(logs, compacts=False)
        log.configure(attrs.evolve(CONFIG, delete_retention_ms=0))
        with pytest.raises(CopyVoid, match=r"delete\.retention\.ms"):
            async with copying_prefix(logs.services, log):
                pass


async def test_copy_does_not_fill_the_volume(autojump_clock) -> None:
    """Producers of all partitions need the room that is left."""
    disk = SimDisk()
    async with running(disk) as logs, running(SimDisk()) as others:
        log = await new_log(logs, compacts=True)
        other = await new_log(others, compacts=False)
        before = read_keys(log)
        disk.capacity = 0
        used = -disk.free()
        disk.capacity = used + 2 * CONFIG.segment_bytes + 700
        with pytest.raises(CopyVoid, match="free bytes"):
            await copy(logs, log, other)
        assert read_keys(log) == before
        assert_in_order(log)
        disk.capacity = 100 * used
        await copy(logs, log, other)
        assert read_keys(log) == read_keys(other)


async def test_log_is_not_copied_during_its_move(autojump_clock) -> None:
    """The future replica may have a value whose tombstone the other replica has removed."""
    limit = moving.Limit(is_over=True)
    rules = MoveRules(throttle=limit)
    disks = SimDisk(), SimDisk()
    async with (
        running(*disks, rules=rules) as logs,
        running(SimDisk()) as others,
    ):
        log = moving.create(logs, CONFIG)
        fill(log)
        other = await new_log(others, compacts=True)
        before = table(log)
        async with copying_prefix(logs.services, log) as prefix:
            data = other.segments[0].file.read(0, other.segments[0].size)
            await prefix.append(data, list(headers(data)))
            logs.moves.request(log, logs.directories[1])
            await trio.sleep(1)
            with pytest.raises(CopyVoid, match="moved"):
                await prefix.finish()
        with pytest.raises(CopyVoid, match="moved"):
            await copy(logs, log, other)
        limit.is_over = False
        await trio.sleep(10)
        moved = moving.current(logs)
        assert moved is not log
        assert table(moved) == before


async def test_log_is_not_copied_while_its_future_replica_may_be_offline(autojump_clock) -> None:
    disks = SimDisk(), SimDisk()
    async with running(*disks) as logs:
        log = moving.create(logs, CONFIG)
        fill(log)
        disks[1].fail(OSError("no such device"))
        logs.directories[1].note_failure()
        with pytest.raises(CopyVoid, match="offline"):
            async with copying_prefix(logs.services, log):
                pass


async def test_aborted_transactions_are_listed_after_a_copy(autojump_clock) -> None:
    async with running(SimDisk()) as logs, running(SimDisk()) as others:
        pair = [each.create("t", ID, 0, CONFIG) for each in (logs, others)]
        more = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        for log in pair:
            put(log, b"a", b"aborted", **more)
            end_transaction(log, 5, commit=False)
            fill(log)
        await copy(logs, *pair)
        lists = [list(log.segments[0].indexes.aborted.entries()) for log in pair]
        assert lists[0] == lists[1] != []
