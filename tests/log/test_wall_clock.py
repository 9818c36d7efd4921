"""Jumps of the wall clock by an hour change neither the timers of logs nor their records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kwire.log.config import LogConfig, LogSettings
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import JumpingClock
from tests.support.log.batches import append, max_timestamp, offset_for_timestamp
from tests.support.log.indexes import are_times_plausible
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

HOUR_MS = 3_600_000


@asynccontextmanager
async def running(
    clock: JumpingClock, settings: LogSettings | None = None
) -> AsyncIterator[LogManager]:
    """Run logs on a simulated disk."""
    logs = LogManager(
        [LogDirectory(SimDisk(), "dir")],
        clock,
        threads=DiskThreads(at_once),
        settings=settings or LogSettings(),
    )
    await logs.open(lambda topic: LogConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_records_are_synced_in_time_when_the_clock_jumps(
    autojump_clock, jump_ms: int
) -> None:
    """Invariant 107: ``flush.ms`` counts the seconds that pass, whatever the wall clock shows."""
    clock = JumpingClock()
    async with running(clock) as logs:
        log = logs.create("t", ID, 0, LogConfig(flush_ms=300))
        for count in range(1, 4):
            append(log, [b"v"], now_ms=clock.now_ms())
            clock.jump_ms = jump_ms - clock.jump_ms
            await trio.sleep(0.29)
            assert log.flush_state.recovery_point == count - 1
            await trio.sleep(0.02)
            assert log.flush_state.recovery_point == count


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_young_records_stay_when_the_clock_jumps(autojump_clock, jump_ms: int) -> None:
    """Invariant 107: a jump of less than ``retention.ms`` deletes no record."""
    clock = JumpingClock()
    config = LogConfig(segment_bytes=200, retention_ms=3 * HOUR_MS)
    async with running(clock) as logs:
        log = logs.create("t", ID, 0, config)
        for number in range(12):
            clock.jump_ms = jump_ms * (number % 2)
            now_ms = clock.now_ms()
            append(log, [b"v"], timestamp_ms=now_ms, now_ms=now_ms)
        log.high_watermark = log.end_offset
        for jump in (0, jump_ms, -jump_ms):
            clock.jump_ms = jump
            assert await logs.retain(log) == 0
        clock.jump_ms = 5 * HOUR_MS
        assert await logs.retain(log) > 0


@pytest.mark.parametrize("append_time", [False, True])
async def test_clock_set_back_and_forth_does_not_roll_a_segment_each_time(
    autojump_clock, append_time: bool
) -> None:
    """Invariant 107: ``segment.ms`` counts age; a record from the past makes no segment older."""
    clock = JumpingClock()
    config = LogConfig(segment_ms=HOUR_MS // 2, log_append_time=append_time)
    async with running(clock) as logs:
        log = logs.create("t", ID, 0, config)
        for jump_ms in (0, -HOUR_MS, 0, -HOUR_MS, 0):
            clock.jump_ms = jump_ms
            append(log, [b"v"], timestamp_ms=clock.now_ms(), now_ms=clock.now_ms())
        assert len(log.segments) == 1
        clock.jump_ms = HOUR_MS
        for _ in range(5):
            append(log, [b"v"], timestamp_ms=clock.now_ms(), now_ms=clock.now_ms())
        assert len(log.segments) == 2


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_append_times_of_a_clock_that_jumps_can_be_searched(
    autojump_clock, jump_ms: int
) -> None:
    """Invariant 107: a log append time is the clock's, so the times of a log may decrease.

    A search returns the first record that is young enough, and the timestamps in a closed segment's
    time index only increase.
    """
    clock = JumpingClock()
    config = LogConfig(segment_bytes=400, index_interval_bytes=50, log_append_time=True)
    async with running(clock) as logs:
        log = logs.create("t", ID, 0, config)
        stamped = []
        for number in range(40):
            clock.jump_ms = jump_ms if number % 8 in (3, 4, 5) else 0
            done = append(log, [b"v", b"w"], timestamp_ms=7, now_ms=clock.now_ms())
            assert done.timestamp_ms == clock.now_ms()
            stamped += [(clock.now_ms(), done.base_offset), (clock.now_ms(), done.last_offset)]
            await trio.sleep(0.1)
        assert len(log.segments) > 3
        for target in sorted({timestamp for timestamp, _ in stamped}):
            expected = next((offset, time) for time, offset in stamped if time >= target)
            assert offset_for_timestamp(log, target) == expected
        assert offset_for_timestamp(log, max(stamped)[0] + 1) is None
        youngest = max(stamped)[0]
        first = next(offset for time, offset in stamped if time == youngest)
        assert max_timestamp(log) == (youngest, first)
        for segment in log.segments:
            assert are_times_plausible(segment.indexes.data()[1])


async def test_idle_producer_is_remembered_when_the_clock_jumps(autojump_clock) -> None:
    """Invariants 50 and 107: the clock is set forward by days, and a retry is still known."""
    clock = JumpingClock()
    async with running(clock) as logs:
        log = logs.create("t", ID, 0, LogConfig(producer_id_expiration_ms=24 * HOUR_MS))
        sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        append(log, [b"v"], timestamp_ms=clock.now_ms(), **sent)
        clock.jump_ms = 48 * HOUR_MS
        await trio.sleep(3600)
        assert append(log, [b"v"], **sent).is_duplicate
        await trio.sleep(25 * 3600)
        assert not append(log, [b"v"], **sent).is_duplicate


async def test_idle_producer_is_forgotten_at_the_interval_of_its_setting(autojump_clock) -> None:
    """``producer.id.expiration.check.interval.ms``, whatever the interval of retention is."""
    clock = JumpingClock()
    settings = LogSettings(retention_check_ms=HOUR_MS, producer_expiry_check_ms=500)
    async with running(clock, settings) as logs:
        log = logs.create("t", ID, 0, LogConfig(producer_id_expiration_ms=5_000))
        sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        append(log, [b"v"], timestamp_ms=clock.now_ms(), **sent)
        await trio.sleep(4)
        assert len(log.producers) == 1
        await trio.sleep(2)
        assert len(log.producers) == 0
