"""Work on many files is done in slices; other tasks run in between."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from kwire.log.config import LogConfig
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append
from tests.support.log.manager import ID, running
from tests.support.log.slices import turns, unopened_manager

CONFIG = LogConfig(segment_bytes=100, retention_ms=3_600_000, file_delete_delay_ms=60_000)


def with_segments(logs: LogManager, count: int) -> PartitionLog:
    log = logs.create("t", ID, 0, CONFIG)
    for _ in range(count + 1):
        append(log, [b"." * 40], timestamp_ms=TIME_MS - 7_200_000)
    append(log, [b"." * 40], timestamp_ms=TIME_MS)
    log.flush_state.flush()
    log.high_watermark = log.end_offset
    return log


async def by_time(log: PartitionLog) -> None:
    """Do nothing: all segments but the last two are too old."""


async def by_request(log: PartitionLog) -> None:
    log.configure(attrs.evolve(CONFIG, retention_ms=-1))
    log.advance_log_start(log.segments.active.base_offset)


@pytest.mark.parametrize("cause", [by_time, by_request])
async def test_other_tasks_run_while_300_segments_are_deleted(
    autojump_clock,
    cause: Callable[[PartitionLog], Awaitable[None]],
) -> None:
    disk = SimDisk()
    logs = unopened_manager(disk)
    await logs.open(lambda topic: CONFIG)
    log = with_segments(logs, 300)
    await cause(log)
    for segment in log.segments[:-1]:
        segment.max_timestamp = -2  # As after a start: the time index is on disk.
    async with turns() as others:
        assert await logs.retain(log) == 301
    assert others.count >= 10, "20 segments take a slice of this clock"
    assert len(log.segments) == 1


async def test_log_can_be_deleted_during_its_retention(autojump_clock) -> None:
    """Invariant 83."""
    disk = SimDisk()
    logs = unopened_manager(disk)
    await logs.open(lambda topic: CONFIG)
    log = with_segments(logs, 300)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.retain, log)
        await trio.lowlevel.checkpoint()
        await logs.delete("t", 0)
        again = logs.create("t", ID, 0, CONFIG)
    append(again, [b"new"])
    assert [entry.name for entry in disk.entries("t-0") if entry.name.endswith(".log")] == [
        "00000000000000000000.log"
    ]


async def test_other_tasks_run_while_checkpoints_of_many_partitions_are_written(
    autojump_clock,
) -> None:
    disk = SimDisk()
    logs = unopened_manager(disk, step=0.001)
    await logs.open(lambda topic: CONFIG)
    created = [logs.create("t", ID, partition, CONFIG) for partition in range(3000)]
    append(created[7], [b"v"])
    created[7].high_watermark = 1
    created[7].advance_log_start(1)
    async with turns() as others:
        assert not await logs.keep_starts(created[:1])
    assert others.count >= 20, "of two files, 200 lines take a slice"
    assert b"t 7 1\n" in disk.read("replication-offset-checkpoint")
    assert disk.read("log-start-offset-checkpoint") == b"0\n1\nt 7 1\n"


async def test_one_task_waits_for_all_removals(autojump_clock) -> None:
    """Its number does not depend on that of deleted partitions; it ends its waits with them."""
    disk = SimDisk()
    async with running(disk) as logs:
        for partition in range(200):
            logs.create("t", ID, partition, CONFIG)
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        for partition in range(200):
            await logs.delete("t", partition)
            await trio.sleep(0.1)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert sum(entry.is_directory for entry in disk.entries()) == 200
        await trio.sleep(50)
        assert sum(entry.is_directory for entry in disk.entries()) in (99, 100)
        await trio.sleep(20)
        assert sum(entry.is_directory for entry in disk.entries()) == 0
        assert not any(len(service.removals) for service in logs.services.values())
