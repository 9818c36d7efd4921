"""Flushes and removals of deleted logs, and flushes of logs in a slow directory."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

import attrs
import pytest
import trio
import trio.testing

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.directories.busy_logs import BusyLogs, RunningFlush
from kwire.log.disk import RealDisk
from kwire.log.manager import LogManager, retire_strays
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from tests.support.log.batches import append, content
from tests.support.log.manager import ID, OTHER, manager, running

ROUNDS: Final = 300
"""More than any work waits for; without a limit a test that fails would not end."""


@pytest.mark.parametrize("how", ["delete", "stray"])
async def test_timed_flush_skips_a_deleted_log(tmp_path, autojump_clock, how: str) -> None:
    """``flush.ms`` may be due after the files were removed."""
    async with running(RealDisk(str(tmp_path))) as logs:
        config = LogConfig(flush_ms=90_000, file_delete_delay_ms=1_000)
        log = logs.create("t", ID, 0, config)
        append(log, [b"v"])
        if how == "delete":
            await logs.delete("t", 0)
        else:
            await retire_strays(logs, lambda partition, topic_id: False)
        await trio.sleep(200)
        assert logs.directories[0].online
        assert not logs.statistics()["offline_directories"]
    await logs.close()


@attrs.define
class Gate:
    """Threads that wait for the test before their first call."""

    opened: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, call: Callable[[], None]) -> None:
        await self.opened.wait()
        call()


async def test_queued_batches_are_not_durable(tmp_path, autojump_clock) -> None:
    """Invariant 81: the recovery point stays below the batches that a slow directory queues."""
    gate = Gate()
    logs = manager(RealDisk(str(tmp_path)))
    logs.threads.stand_in = gate
    await logs.open(lambda topic: LogConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        log = logs.create("t", ID, 0, LogConfig(flush_messages=1))
        log.disk.slow = True
        append(log, [b"v"])
        assert (log.writer.written_offset, log.end_offset) == (0, 1)
        assert log.must_flush
        durable = trio.Event()

        async def flush() -> None:
            await logs.flush(log, log.end_offset)
            durable.set()

        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert log.flush_state.recovery_point == 0
        assert not durable.is_set()
        gate.opened.set()
        await durable.wait()
        assert log.flush_state.recovery_point == log.writer.written_offset == 1
        nursery.cancel_scope.cancel()
    await logs.close()


async def test_flush_of_truncated_records_fails(tmp_path) -> None:
    """The records of another leader replace them, so they are never durable."""
    logs = manager(RealDisk(str(tmp_path)))
    await logs.open(lambda topic: LogConfig())
    log = logs.create("t", ID, 0, LogConfig())
    append(log, [b"kept"])
    append(log, [b"lost"])
    await logs.truncate(log, 1)
    with pytest.raises(KafkaStorageError):
        await logs.flush(log, 2)
    await logs.flush(log, 1)
    assert log.flush_state.recovery_point == 1
    await logs.close()


async def _retain(logs: LogManager, log: PartitionLog) -> None:
    assert await logs.retain(log)


async def _truncate(logs: LogManager, log: PartitionLog) -> None:
    assert await logs.truncate(log, 1)


async def _delete(logs: LogManager, log: PartitionLog) -> None:
    await logs.delete("t", 0)
    assert logs.get("t", 0) is None


async def _flush_indexes(logs: LogManager, log: PartitionLog) -> None:
    while log.writer.written_offset < 5:
        await trio.lowlevel.checkpoint()
    # The indexes of a closed segment with queued batches stay in memory.
    written = log.writer.written_offset
    base_offset = max(s.base_offset for s in log.segments if s.base_offset <= written)
    await logs.flush(log, indexes=True)
    assert log.flush_state.indexed_end >= base_offset > 0


@pytest.mark.parametrize("wait", [BusyLogs.wait_idle, BusyLogs.wait_threads])
async def test_log_is_free_for_a_change_once_no_thread_works_on_it(
    autojump_clock, wait: Callable[[BusyLogs, PartitionLog], Awaitable[None]]
) -> None:
    """Invariant 83: a truncation or deletion would meet the flush, or the write that follows it."""
    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, LogConfig())
        busy = BusyLogs()
        write, idle = trio.Event(), trio.Event()
        append(log, [b"v"])
        flush = log.flush_state.start()
        assert flush is not None
        busy.flushes[log] = RunningFlush(flush)

        async def wait_and_tell() -> None:
            await wait(busy, log)
            idle.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_and_tell)
            await trio.testing.wait_all_tasks_blocked()
            busy.writes[log] = write
            busy.flushes.pop(log).ended.set()
            await trio.testing.wait_all_tasks_blocked()
            assert not idle.is_set()
            busy.writes.pop(log).set()
        assert idle.is_set()
        log.flush_state.end(flush)
    await logs.close()


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("act", [_retain, _truncate, _delete, _flush_indexes])
async def test_work_on_a_log_goes_on_while_it_is_flushed_all_the_time(
    autojump_clock, act: Callable[[LogManager, PartitionLog], Awaitable[object]], is_slow: bool
) -> None:
    """Invariant 86: with ``flush.messages=1`` each flush begins as soon as the last one ends."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(segment_bytes=200, retention_bytes=500))
        done = trio.Event()

        async def load() -> None:
            for _ in range(ROUNDS):
                if done.is_set():
                    return
                append(log, [b"v"])
                with suppress(KafkaStorageError):  # The log is deleted, or cut.
                    await logs.flush(log, log.end_offset)
                log.high_watermark = log.flush_state.recovery_point

        disk.slow = is_slow
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(load)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            await act(logs, log)
            ended_before = log.end_offset
            done.set()
        assert ended_before < ROUNDS
    await logs.close()


async def test_log_that_is_flushed_all_the_time_keeps_no_other_waiting_for_its_roll(
    autojump_clock,
) -> None:
    """The closed segments of a directory's logs are synced one log after the other."""
    async with running(SimDisk()) as logs:
        config = LogConfig(segment_bytes=200)
        log, other = logs.create("t", ID, 0, config), logs.create("u", OTHER, 0, config)

        async def load() -> None:
            while other.flush_state.indexed_end == 0 and log.end_offset < ROUNDS:
                append(log, [b"v"])
                await logs.flush(log, log.end_offset)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(load)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            for _ in range(4):
                append(other, [b"v"])
        assert other.flush_state.indexed_end > 0
        assert log.end_offset < ROUNDS
    await logs.close()


async def test_partition_that_reappears_after_power_loss_has_all_its_files(autojump_clock) -> None:
    """Invariant 83: without its topic id it could be taken for a partition of another topic."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(file_delete_delay_ms=1))
        append(log, [b"v"])
        await logs.flush(log)
        await trio.sleep(100)
        before = {entry.name for entry in disk.entries("t-0")}
        await logs.delete("t", 0)
        await trio.sleep(0.01)
        assert not any(path.startswith("t-0") for path in disk.files)
        for seed in range(40):
            survivor = disk.power_loss(Random(seed))
            if "t-0" in {entry.name for entry in survivor.entries()}:
                assert {entry.name for entry in survivor.entries("t-0")} == before, seed
    await logs.close()


async def test_retention_keeps_records_that_replace_truncated_ones(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While retention waits for a flush, a truncation may end, and appends may begin a segment."""
    wait_idle, waits, new = BusyLogs.wait_idle, 0, list[int]()

    async def wait(busy: BusyLogs, waiting: PartitionLog) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:  # The first wait is that for the plan.
            second = waiting.segments[1].base_offset
            waiting.truncate_to(second + 1)
            while waiting.segments.active.base_offset <= second:
                new.append(waiting.end_offset)
                append(waiting, [b"new"], timestamp_ms=logs.clock.now_ms())
            waiting.high_watermark = waiting.end_offset
        await wait_idle(busy, waiting)

    async with running(SimDisk()) as logs:
        log = logs.create("t", ID, 0, LogConfig(segment_bytes=300, retention_ms=3_600_000))
        old_ms = logs.clock.now_ms() - 2 * 3_600_000
        while len(log.segments) < 6:
            append(log, [b"old"], timestamp_ms=old_ms)
        log.high_watermark = log.end_offset
        await logs.flush(log, indexes=True)
        monkeypatch.setattr(BusyLogs, "wait_idle", wait)
        await logs.retain(log)
        assert new
        assert [offset for offset, value in content(log) if value == b"new"] == new


async def test_segments_that_a_start_has_recovered_are_synced_soon(autojump_clock) -> None:
    """Otherwise their indexes stay in memory, and the next start after a kill reads them again."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, LogConfig(segment_bytes=300))
        await logs.flush(log)
        while len(log.segments) < 100:
            append(log, [b"v"])
        killed = disk.after_kill()
    async with running(killed) as logs:
        log = logs.directories[0].logs[log.partition]
        assert log.flush_state.unsynced.closed
        await trio.sleep(1)
        assert not log.flush_state.unsynced.closed
        assert log.flush_state.recovery_point >= log.segments.active.base_offset > 0
