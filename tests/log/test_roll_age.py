"""The age at which segments are rolled, as Apache Kafka's ``LogConfig`` and ``LogSegment`` say."""

from collections.abc import Callable
from random import Random

import pytest
import trio

from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, append
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

AGE_MS = 1_000
STEP_MS = 10


def roll_ages(log: PartitionLog, count: int = 1) -> list[int]:
    """Append a small batch every 10 ms; return the ages of the first segments when they rolled."""
    ages: list[int] = []
    time = begun = TIME_MS
    segment = log.segments.active
    while len(ages) < count:
        assert time - begun <= 3 * AGE_MS, "the segment is never rolled"
        append(log, [b"v"], timestamp_ms=time, now_ms=time)
        if log.segments.active is not segment:
            ages.append(time - begun)
            segment, begun = log.segments.active, time
        time += STEP_MS
    return ages


async def with_logs(
    config: LogConfig, use: Callable[[list[PartitionLog]], None], *, seed: int = 1, starts: int = 1
) -> None:
    """Call ``use`` with 20 logs of a node that has been started this often."""
    disk = SimDisk()
    for start in range(starts):
        logs = LogManager(
            [LogDirectory(disk, "dir")], Clock(), threads=DiskThreads(at_once), random=Random(seed)
        )
        await logs.open(lambda topic: config)
        async with trio.open_nursery() as nursery:
            await nursery.start(logs.run)
            of_node = [logs.create("t", ID, partition, config) for partition in range(20)]
            if start == starts - 1:
                use(of_node)
            nursery.cancel_scope.cancel()
        await logs.close()


@pytest.mark.parametrize("starts", [1, 2])
async def test_logs_that_begin_together_roll_at_random_times(starts: int) -> None:
    ages: list[list[int]] = []

    def use(logs: list[PartitionLog]) -> None:
        ages.append([roll_ages(log)[0] for log in logs])

    config = LogConfig(segment_ms=AGE_MS, segment_jitter_ms=400)
    for seed in (1, 1, 2):
        await with_logs(config, use, seed=seed, starts=starts)
    first, same, other = ages
    assert len(set(first)) > 10
    assert all(AGE_MS - 400 < age <= AGE_MS + STEP_MS for age in first)
    assert first == same != other


async def test_each_segment_of_a_log_has_a_jitter_of_its_own() -> None:
    def use(logs: list[PartitionLog]) -> None:
        assert len(set(roll_ages(logs[0], 20))) > 10

    await with_logs(LogConfig(segment_ms=AGE_MS, segment_jitter_ms=400), use)


async def test_jitter_above_the_age_of_segments_leaves_each_some_age() -> None:
    def use(logs: list[PartitionLog]) -> None:
        ages = [roll_ages(log)[0] for log in logs]
        assert sum(age > STEP_MS for age in ages) > 15
        assert max(ages) <= AGE_MS + STEP_MS

    await with_logs(LogConfig(segment_ms=AGE_MS, segment_jitter_ms=1 << 40), use)
    compacted = LogConfig(
        max_compaction_lag_ms=AGE_MS, segment_jitter_ms=1 << 40, cleanup_compact=True
    )
    await with_logs(compacted, use)


async def test_without_jitter_all_segments_roll_at_the_same_age() -> None:
    def use(logs: list[PartitionLog]) -> None:
        assert {roll_ages(log)[0] for log in logs} == {AGE_MS + STEP_MS}

    await with_logs(LogConfig(segment_ms=AGE_MS), use)


@pytest.mark.parametrize(
    ("compact", "lag_ms", "expected"),
    [(True, 500, 500), (True, 5_000, AGE_MS), (False, 500, AGE_MS)],
)
async def test_segments_of_compacted_topics_roll_within_the_compaction_lag(
    compact: bool, lag_ms: int, expected: int
) -> None:
    """Only closed segments are cleaned, so a record waits for the roll at most this long."""

    def use(logs: list[PartitionLog]) -> None:
        assert roll_ages(logs[0]) == [expected + STEP_MS]

    config = LogConfig(segment_ms=AGE_MS, max_compaction_lag_ms=lag_ms, cleanup_compact=compact)
    await with_logs(config, use)
