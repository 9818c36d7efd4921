"""A process killed, or a machine without power, between any two steps of a roll."""

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from random import Random

import pytest
import trio

from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.flush_state import CLOSED_MAX, SEGMENTS_AT_ONCE
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import PAGE, Killed, SimDisk
from simulation.log.sim import Model, batches_of, contents, judge
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID
from tests.support.log.restart import reopen
from tests.support.log.rolling import POWER_SEEDS, ObservedDisk, Rolling
from tests.support.log.threads import at_once

MARKS = (names.DELETED, names.SWAP, names.CLEANED, ".tmp")
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    retention_ms=-1,
    producer_id_expiration_ms=1 << 50,
)


async def by_size(rolling: Rolling) -> None:
    """Append the batch that does not fit into the segment, and one more."""
    rolling.feed(2)
    await rolling.flush()
    rolling.feed(1)


async def by_fetch(rolling: Rolling) -> None:
    """Append a follower's fetch that fills two segments and begins a third one."""
    rolling.follow(20)


async def twice_in_a_row(rolling: Rolling) -> None:
    """Roll again before the indexes of the first roll are written."""
    for _ in range(2):
        rolling.log.roll(TIME_MS)
        rolling.feed(1)


async def while_flushing(rolling: Rolling) -> None:
    """Roll while a flush is running."""
    rolling.feed(1)
    flush = rolling.log.flush_state.start()
    assert flush is not None
    rolling.log.roll(TIME_MS)
    rolling.feed(1)
    flush.run()
    rolling.log.flush_state.end(flush)


def manager(disk: SimDisk) -> LogManager:
    return LogManager([LogDirectory(disk, "dir")], Clock(), threads=DiskThreads(at_once))


@pytest.mark.parametrize("act", [by_size, by_fetch, twice_in_a_row, while_flushing])
@pytest.mark.parametrize("is_synced", [True, False])
async def test_roll_can_be_interrupted_at_every_step(
    autojump_clock, act: Callable[[Rolling], Awaitable[None]], is_synced: bool
) -> None:
    """Invariants 51, 64, 78, 81, 83 and 85."""
    disk = ObservedDisk()
    logs = manager(disk)
    await logs.open(lambda topic: CONFIG)
    rolling = Rolling(disk, logs, Model(logs.create("t", ID, 0, CONFIG), ID))
    log = rolling.log
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        rolling.feed(10)
        await rolling.flush()
        await trio.sleep(100)  # The checkpoints cover them.
        rolling.feed(3)
        segments = len(log.segments)
        while log.segments.active.size < 600:
            rolling.feed(1)
        assert len(log.segments) == segments
        if is_synced:
            await rolling.flush()
        rolling.watch()
        await act(rolling)
        await rolling.flush()
        await trio.sleep(100)
        disk.on_call = None
        nursery.cancel_scope.cancel()
    assert len(log.segments) > segments
    assert log.flush_state.recovery_point == log.end_offset
    kinds = {kind for kind, _ in (moment.call for moment in rolling.moments)}
    assert kinds >= {"create", "write", "sync", "sync_directory", "rename"}
    for number, moment in enumerate(rolling.moments):
        story = f"before call {number}, {moment.call}"
        await check(moment.after_kill, rolling.model, moment.appended, f"killed {story}")
        for seed, after in zip(POWER_SEEDS, moment.after_power_loss, strict=True):
            await check(after, rolling.model, moment.promised, f"power lost {story}, seed {seed}")


async def check(disk: SimDisk, model: Model, promised: int, story: str) -> None:
    """Open the log: it has every synced record once, without gaps, and takes new ones."""
    logs = manager(disk)
    await logs.open(lambda topic: CONFIG)
    log = logs.get("t", 0)
    assert log is not None, story
    try:
        judge(0, model, log, promised)
    except AssertionError as error:
        raise AssertionError(f"{story}: {error}") from None
    assert [offset for offset, _ in contents(log)] == list(range(log.end_offset)), story
    end_offset = 0
    for _, _, header in batches_of(log):
        assert header.base_offset == end_offset, story
        end_offset = header.next_offset
    assert end_offset == log.end_offset, story
    assert not list(leftover_files(disk, log)), story
    for _ in range(2):
        append(log, [b"after"])
        log.roll(TIME_MS)
    log.flush_state.flush()
    values = [value for _, value in contents(log)]
    assert values[end_offset:] == [b"after"] * 2, story
    await logs.close()


def leftover_files(disk: SimDisk, log: PartitionLog) -> Iterator[str]:
    """Yield the names of files of segments that the log does not have."""
    bases = {segment.base_offset for segment in log.segments}
    for entry in disk.entries("t-0"):
        suffix = "." + entry.name.rpartition(".")[2]
        is_of_segment = suffix in names.SEGMENT_SUFFIXES
        if suffix in MARKS or (is_of_segment and names.stem_offset(entry.name) not in bases):
            yield entry.name


def roll_often(config: LogConfig, count: int) -> tuple[SimDisk, PartitionLog]:
    """Return a disk and its log: a synced segment, and ``count`` that are not."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, config)
    append(log, [b"synced"])
    log.flush_state.flush()
    for number in range(count):
        append(log, [b"%02d" % number * (PAGE // 2 - 50)])
    assert len(log.segments) == count + 1
    return disk, log


def check_front(disk: SimDisk, log: PartitionLog, recovery_point: int, seeds: int) -> None:
    """Check that a power loss leaves the first records of the log, and none behind a hole."""
    before = content(log)
    for seed in range(seeds):
        survivor = disk.power_loss(Random(seed))
        again = reopen(survivor, log.config, recovery_point=recovery_point, high_watermark=1)
        after = content(again)
        assert after == before[: len(after)]
        assert again.end_offset == len(after)


@pytest.mark.parametrize("count", [6, 2 * CLOSED_MAX])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_power_loss_after_rolls_leaves_the_front_of_the_log(is_compacted: bool, count: int) -> None:
    """Invariant 83: also of a compacted log, where a lost segment looks like compaction's gap."""
    disk, log = roll_often(LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted), count)
    check_front(disk, log, recovery_point=1, seeds=1800 // count)


@pytest.mark.parametrize("count", [6, 2 * CLOSED_MAX])
def test_power_loss_after_a_change_to_compaction_leaves_the_front_of_the_log(count: int) -> None:
    """Invariant 83: the indexes of the first segments were written before anything was synced."""
    disk, log = roll_often(LogConfig(segment_bytes=PAGE), count)
    log.config = LogConfig(segment_bytes=PAGE, cleanup_compact=True)
    check_front(disk, log, recovery_point=1, seeds=1800 // count)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_power_loss_after_a_recovery_leaves_the_front_of_the_log(is_compacted: bool) -> None:
    """Invariant 83: a recovery syncs nothing, so its indexes must not say that it did."""
    config = LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted)
    killed = roll_often(config, 6)[0].after_kill()
    check_front(killed, reopen(killed, config, recovery_point=1), recovery_point=1, seeds=100)


def after_clean_stop(disk: SimDisk, log: PartitionLog) -> PartitionLog:
    log.close()
    log = reopen(disk.after_kill(), log.config, clean=True, recovery_point=log.end_offset)
    log.flush_state.flush()
    return log


def after_kill(disk: SimDisk, log: PartitionLog) -> PartitionLog:
    """Recover the log after a clean stop and a killed run in which some records were synced."""
    log = after_clean_stop(disk, log)
    append(log, [b"also synced"])
    log.flush_state.flush()
    point = log.flush_state.stored_recovery_point(log.end_offset)
    assert isinstance(log.disk, SimDisk)
    return reopen(log.disk.after_kill(), log.config, recovery_point=point)


def after_truncation(disk: SimDisk, log: PartitionLog) -> PartitionLog:
    for _ in range(3):
        append(log, [b"removed" * PAGE])
    log.flush_state.flush()
    log.truncate_to(2)
    log.flush_state.flush()
    return log


@pytest.mark.parametrize("reopen_log", [after_clean_stop, after_kill, after_truncation])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_power_loss_after_appends_to_an_indexed_segment_leaves_the_front_of_the_log(
    is_compacted: bool, reopen_log: Callable[[SimDisk, PartitionLog], PartitionLog]
) -> None:
    """Invariant 83: the segment that the log begins with has an index from before its last batches.

    Its lost batches must not look like a gap of compaction.
    """
    config = LogConfig(segment_bytes=4 * PAGE, index_interval_bytes=0, cleanup_compact=is_compacted)
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, config)
    for _ in range(2):
        append(log, [b"synced"])
    log.flush_state.flush()
    log = reopen_log(disk, log)
    assert isinstance(log.disk, SimDisk)
    point = log.flush_state.stored_recovery_point(log.end_offset)
    for number in range(10):
        append(log, [b"%d" % number * (PAGE - 100)])
    assert len(log.segments) > 2
    check_front(log.disk, log, recovery_point=point, seeds=60)
    log.flush_state.flush()
    check_front(log.disk, log, recovery_point=point, seeds=1)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_power_loss_between_parts_of_a_flush_leaves_the_front_of_the_log(
    is_compacted: bool,
) -> None:
    """Invariants 83 and 85: cuts count as unsynced until the last part."""
    config = LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted)
    killed = roll_often(config, SEGMENTS_AT_ONCE + 10)[0].after_kill()
    log = reopen(killed, config, recovery_point=1)
    state = log.flush_state
    for is_last in (False, True):
        assert state.cut_unsynced
        flush = state.start_part()
        assert flush is not None
        flush.run()
        state.end(flush)
        point = state.stored_recovery_point(log.end_offset)
        check_front(killed, log, point, seeds=1 if is_last else 25)
    assert not state.cut_unsynced
    assert state.recovery_point == log.end_offset


@pytest.mark.parametrize("is_compacted", [False, True])
def test_kill_with_queued_batches_leaves_the_front_of_the_log(is_compacted: bool) -> None:
    """Invariant 83: a flush writes no index of a segment whose batches a slow disk still lacks."""
    config = LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted)
    disk, log = roll_often(config, 2)
    log.flush_state.flush()
    point = log.flush_state.stored_recovery_point(log.end_offset)
    log.writer.on_queued = lambda: None
    disk.slow = True
    for number in range(6):
        append(log, [b"%d" % number * (PAGE // 2)])
    log.flush_state.flush()
    again = reopen(disk.after_kill(), config, recovery_point=point, high_watermark=1)
    assert again.end_offset == len(content(again)) == log.writer.written_offset
    log.write_queued()
    assert log.flush_state.start() is not None


@pytest.mark.parametrize("lost_count", [1, 3])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_power_loss_after_the_recovery_of_a_lost_segment_leaves_the_front_of_the_log(
    is_compacted: bool, lost_count: int
) -> None:
    """Invariant 81: the second recovery, too, notices that lost segments had records."""
    config = LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted)
    disk, log = roll_often(config, 2)
    log.roll(TIME_MS)
    log.flush_state.flush()
    for number in range(3):
        append(log, [b"%d" % number * (PAGE - 100)])
    for segment in log.segments[3 : 3 + lost_count]:
        disk.inode(segment.file.path).truncate(0)
    for inode in disk.files.values():
        inode.sync()
    disk.sync_directory("t-0")
    disk.sync_directory()
    recovered = disk.after_kill()
    log = reopen(recovered, config, recovery_point=1, high_watermark=1)
    check_front(recovered, log, recovery_point=1, seeds=30)


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_power_loss_during_a_clean_stop_leaves_the_front_of_the_log(
    is_compacted: bool,
) -> None:
    """Invariant 83: the stop writes the indexes of segments that have just been closed."""
    config = LogConfig(segment_bytes=PAGE, cleanup_compact=is_compacted)
    for changes in count():
        disk = roll_often(config, 3)[0].after_kill()
        logs = manager(disk)
        await logs.open(lambda _: config)
        log = logs.get("t", 0)
        assert log is not None
        disk.changes_left = changes
        try:
            await logs.close()
        except* Killed:
            pass
        check_front(disk, log, recovery_point=1, seeds=5)
        if disk.changes_left:
            break
