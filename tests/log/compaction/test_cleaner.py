"""The cleaner of a broker: when it looks, what it does after failures, and settings that change."""

import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import CleaningFailed, CleaningJob
from kwire.log.compaction.states import CleaningStates
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.cleaning_runner import (
    CleaningRunner,
    Pass,
    ProcessRunner,
)
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.worker_process import WorkerEnded
from kwire.log.disk import Disk, RealDisk
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from kwire.metrics import Metrics
from kwire.node.gauges import add_cleaner_gauges
from simulation.disk import SimDisk
from simulation.log.thread_workers import ThreadRunner
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.key_logs import put, table
from tests.support.log.manager import ID
from tests.support.log.scrubbed import make_log
from tests.support.log.threads import at_once

CONFIG = LogConfig(segment_bytes=300, cleanup_compact=True, cleanup_delete=False)
SETTINGS = CleanerSettings(backoff_ms=1_000, map_bytes=1 << 20)


async def in_thread(disk: Disk, call: Callable[[], None]) -> None:
    await at_once(call)


@asynccontextmanager
async def running(
    disk: SimDisk | RealDisk,
    make_runner: Callable[[], CleaningRunner] = lambda: ThreadRunner(in_thread, clean),
    name: str = "dir",
) -> AsyncIterator[LogManager]:
    logs = LogManager(
        [LogDirectory(disk, name)],
        Clock(),
        threads=DiskThreads(at_once),
        make_runner=make_runner,
        cleaner_settings=SETTINGS,
    )
    await logs.open(lambda topic: CONFIG)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()
    logs.abandon()


def fill(
    logs: LogManager, topic: str = "t", config: LogConfig = CONFIG, timestamp_ms: int = TIME_MS
) -> dict[bytes, bytes]:
    log = logs.create(topic, ID, 0, config)
    for number in range(40):
        put(log, b"key%d" % (number % 3), b"value %d" % number, timestamp_ms=timestamp_ms)
    log.roll(TIME_MS)
    log.high_watermark = log.end_offset
    return table(log)


def put_again(logs: LogManager, topic: str, count: int) -> None:
    """Add records to a log that has been cleaned, and close their segment."""
    log = logs.get(topic, 0)
    assert log is not None
    for number in range(count):
        put(log, b"key%d" % (number % 3), b"value %d" % number)
    log.roll(TIME_MS)
    log.high_watermark = log.end_offset


def clean_end(logs: LogManager, topic: str = "t") -> int | None:
    log = logs.get(topic, 0)
    assert log is not None
    return log.clean_state.clean_end


async def test_pass_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The clock is the real one: the process is waited for, not the time."""
    disk = RealDisk(str(tmp_path))
    async with running(disk, ProcessRunner, str(tmp_path)) as logs:
        before = fill(logs)
        log = logs.get("t", 0)
        assert log is not None
        with trio.fail_after(60):
            while clean_end(logs) is None:  # noqa: ASYNC110 - the process gives no event
                await trio.sleep(0.05)
        assert table(log) == before
        assert log.segments.size < 600
        assert logs.cleaner is not None
        assert logs.cleaner.dead_count == 0


async def test_process_that_ends_is_an_error_of_the_worker(tmp_path: Path) -> None:
    runner = ProcessRunner((sys.executable, "-c", "import sys; sys.exit(3)"))
    job = CleaningJob(
        directory="t-0",
        segments=(),
        next_base=0,
        first_dirty=0,
        end_offset=0,
        now_ms=0,
        later_aborted=(),
        config=CONFIG,
        memory_bytes=1,
        load_factor=0.9,
        buffer_bytes=1,
        active_producers={},
        bytes_per_second=1.0,
    )
    async with runner.running(RealDisk(str(tmp_path)), str(tmp_path), job) as step:
        with pytest.raises(WorkerEnded):
            await step(None)


@attrs.define(eq=False)
class Failing:
    """A pass that fails a number of times, then cleans."""

    error: Exception
    times: int
    calls: int = 0

    def __call__(self, disk: Disk, job: CleaningJob, pace: Callable[[int], None]) -> Pass:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return (yield from clean(disk, job, pace))


async def test_single_busy_worker_may_use_the_whole_rate_and_several_share_it(
    autojump_clock,
) -> None:
    """Kafka's threads share one throttle too."""
    runners, rates = list[ThreadRunner](), list[float]()

    def record(disk: Disk, job: CleaningJob, pace: Callable[[int], None]) -> Pass:
        rates.append(job.bytes_per_second)
        return (yield from clean(disk, job, pace))

    def make_runner() -> ThreadRunner:
        runners.append(ThreadRunner(in_thread, record))
        return runners[-1]

    async with running(SimDisk(), make_runner) as logs:
        logs.configure_cleaner(attrs.evolve(SETTINGS, threads=4, bytes_per_second=1000.0))
        fill(logs)
        await trio.sleep(10)
        assert rates == [1000.0]
        limits = {runner.limit for runner in runners}
        assert len(runners) == 4
        assert [limit.bytes_per_second for limit in limits] == [1000.0]


async def test_negative_rate_is_no_limit(autojump_clock) -> None:
    """Kafka does not sleep then either."""
    rates = list[float]()

    def record(disk: Disk, job: CleaningJob, pace: Callable[[int], None]) -> Pass:
        rates.append(job.bytes_per_second)
        return (yield from clean(disk, job, pace))

    async with running(SimDisk(), lambda: ThreadRunner(in_thread, record)) as logs:
        logs.configure_cleaner(attrs.evolve(SETTINGS, bytes_per_second=-1.0))
        fill(logs)
        await trio.sleep(10)
        assert rates == [math.inf]


async def test_worker_that_ends_is_started_again(autojump_clock) -> None:
    failing = Failing(WorkerEnded("killed"), 3)
    async with running(SimDisk(), lambda: ThreadRunner(in_thread, failing)) as logs:
        before = fill(logs)
        assert logs.cleaner is not None
        await trio.sleep(2.5)
        assert logs.cleaner.dead_count == 1
        await trio.sleep(30)
        log = logs.get("t", 0)
        assert log is not None
        assert table(log) == before
        assert clean_end(logs)
        assert logs.cleaner.dead_count == 0


@pytest.mark.parametrize("error", [CleaningFailed("damage"), IndexError("a fault")])
async def test_damaged_log_is_left_alone_until_a_restart(autojump_clock, error: Exception) -> None:
    disk, failing = SimDisk(), Failing(error, 1)
    async with running(disk, lambda: ThreadRunner(in_thread, failing)) as logs:
        before = fill(logs)
        await trio.sleep(30)
        fill(logs)
        await trio.sleep(30)
        assert failing.calls == 1
        assert clean_end(logs) is None
        assert logs.cleaner is not None
        _, uncleanable = next(iter(logs.cleaner.uncleanable()))
        assert [log.partition.topic for log in uncleanable] == ["t"]
        fill(logs, "other")
        await trio.sleep(10)
        assert clean_end(logs, "other")
    async with running(disk.after_kill()) as logs:
        await trio.sleep(10)
        log = logs.get("t", 0)
        assert log is not None
        assert table(log) == before


async def test_log_is_cleaned_once_its_topic_becomes_compacted(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        fill(logs, config=LogConfig(segment_bytes=300, retention_ms=-1))
        await trio.sleep(10)
        assert clean_end(logs) is None
        log = logs.get("t", 0)
        assert log is not None
        log.configure(CONFIG)
        await trio.sleep(10)
        assert clean_end(logs)


async def test_records_younger_than_the_minimum_lag_are_cleaned_when_it_has_passed(
    autojump_clock,
) -> None:
    async with running(SimDisk()) as logs:
        fill(logs, config=attrs.evolve(CONFIG, min_compaction_lag_ms=3_600_000))
        await trio.sleep(3_590)
        assert clean_end(logs) is None
        await trio.sleep(20)
        assert clean_end(logs)


async def test_records_without_timestamps_are_as_young_as_their_file(autojump_clock) -> None:
    """The minimum lag of their segment counts from its roll, as in Apache Kafka."""
    async with running(SimDisk()) as logs:
        config = attrs.evolve(CONFIG, min_compaction_lag_ms=3_600_000)
        fill(logs, config=config, timestamp_ms=-1)
        await trio.sleep(3_590)
        assert clean_end(logs) is None
        await trio.sleep(20)
        assert clean_end(logs)


async def test_clean_log_below_the_ratio_waits_for_the_maximum_lag(autojump_clock) -> None:
    config = attrs.evolve(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=3_600_000)
    async with running(SimDisk()) as logs:
        fill(logs, config=config)
        await trio.sleep(3_590)
        assert clean_end(logs) is None
        await trio.sleep(20)
        assert clean_end(logs)


async def test_more_threads_are_used_at_once_and_none_stop_the_cleaning(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        logs.configure_cleaner(attrs.evolve(SETTINGS, threads=0))
        fill(logs)
        await trio.sleep(30)
        assert clean_end(logs) is None
        logs.configure_cleaner(attrs.evolve(SETTINGS, threads=2))
        await trio.sleep(30)
        assert clean_end(logs)


async def test_dirtiest_of_the_due_logs_is_cleaned_first(autojump_clock) -> None:
    cleaned: list[str] = []

    def record(disk: Disk, job: CleaningJob, pace: Callable[[int], None]) -> Pass:
        cleaned.append(job.directory)
        return (yield from clean(disk, job, pace))

    async with running(SimDisk(), lambda: ThreadRunner(in_thread, record)) as logs:
        for topic in ("half", "most"):
            fill(logs, topic)
        await trio.sleep(30)
        cleaned.clear()
        for topic, count in (("half", 10), ("most", 40)):
            put_again(logs, topic, count)
        fill(logs, "all")
        await trio.sleep(30)
        assert cleaned == ["all-0", "most-0", "half-0"]


async def test_records_behind_an_open_transaction_are_cleaned_once_it_ends(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        fill(logs)
        log = logs.get("t", 0)
        assert log is not None
        log.high_watermark = 0
        await trio.sleep(100)
        assert clean_end(logs) is None
        log.high_watermark = log.end_offset  # Nothing announces this.
        await trio.sleep(30)
        assert clean_end(logs)


def gauges(logs: LogManager) -> dict[str, int]:
    """Return the cleaner's values of the metrics page, by the ends of their names."""
    metrics = Metrics()
    add_cleaner_gauges(metrics, logs)
    lines = (line.rsplit(" ", 1) for line in metrics.lines() if not line.startswith("#"))
    return {
        name.partition("{")[0].removeprefix("kafka_log_logcleaner"): int(float(value))
        for name, value in lines
    }


def sizes(logs: LogManager, topic: str = "t") -> tuple[int, int]:
    """Return the bytes of a log's closed segments: of those that are clean, and of the others."""
    log = logs.get(topic, 0)
    assert log is not None
    clean_to = log.clean_state.clean_end or 0
    sizes = [0, 0]
    for segment in log.segments[:-1]:
        sizes[segment.base_offset >= clean_to] += segment.size
    return sizes[0], sizes[1]


async def test_share_that_compaction_would_read_is_shown_for_the_dirtiest_log(
    autojump_clock,
) -> None:
    config = attrs.evolve(CONFIG, min_cleanable_dirty_ratio=0.99)
    async with running(SimDisk()) as logs:
        fill(logs, config=config)
        await trio.sleep(10)
        assert gauges(logs)["manager_max_dirty_percent"] == 0
        log = logs.get("t", 0)
        assert log is not None
        for number in range(9):
            put(log, b"key%d" % (number % 3), b"value %d" % number)
        log.roll(TIME_MS)
        log.high_watermark = log.end_offset
        await trio.sleep(10)
        clean_bytes, dirty_bytes = sizes(logs)
        assert 0 < clean_bytes < dirty_bytes
        percent = 100 * dirty_bytes // (clean_bytes + dirty_bytes)
        assert gauges(logs)["manager_max_dirty_percent"] == percent


async def test_bytes_written_are_shown_for_each_hundred_read(autojump_clock) -> None:
    async with running(SimDisk()) as logs:
        fill(logs)
        read_bytes = sum(sizes(logs))
        await trio.sleep(10)
        written_bytes = sum(sizes(logs))
        assert 0 < written_bytes < read_bytes
        assert gauges(logs)["_cleaner_recopy_percent"] == 100 * written_bytes // read_bytes


async def test_time_by_which_a_log_is_overdue_is_shown(autojump_clock) -> None:
    config = attrs.evolve(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=3_600_000)
    async with running(SimDisk()) as logs:
        logs.configure_cleaner(attrs.evolve(SETTINGS, threads=0))
        fill(logs, config=config)
        await trio.sleep(3_590)
        assert gauges(logs)["_max_compaction_delay_secs"] == 0
        await trio.sleep(110)
        assert logs.cleaner is not None
        log = logs.get("t", 0)
        assert log is not None
        logs.cleaner.mark(log)
        await trio.sleep(2)
        assert gauges(logs)["_max_compaction_delay_secs"] in (100, 101)
        logs.configure_cleaner(SETTINGS)
        await trio.sleep(10)
        assert clean_end(logs)
        assert gauges(logs)["_max_compaction_delay_secs"] == 0


async def test_time_since_logs_were_assessed_is_shown_while_one_has_changed(
    autojump_clock,
) -> None:
    async with running(SimDisk()) as logs:
        fill(logs)
        await trio.sleep(100)
        assert gauges(logs)["manager_time_since_last_run_ms"] == 0
        fill(logs, "other")
        await trio.sleep(0.5)
        assert 90_000 < gauges(logs)["manager_time_since_last_run_ms"] <= 100_500
        await trio.sleep(10)
        assert gauges(logs)["manager_time_since_last_run_ms"] == 0


async def test_bytes_of_an_uncleanable_log_are_shown_also_after_appends(autojump_clock) -> None:
    """It no longer counts as the dirtiest log, as in Kafka."""
    failing = Failing(CleaningFailed("damage"), 1)
    async with running(SimDisk(), lambda: ThreadRunner(in_thread, failing)) as logs:
        fill(logs)
        await trio.sleep(10)
        for _ in range(2):
            shown = gauges(logs)
            assert shown["manager_uncleanable_partitions_count"] == 1
            assert shown["manager_uncleanable_bytes"] == sizes(logs)[1] > 0
            assert shown["manager_max_dirty_percent"] == 0
            fill(logs)
            await trio.sleep(10)


def test_no_pass_starts_before_the_last_of_two_pauses_has_ended() -> None:
    """A truncation may begin during a move; the pass that was refused is announced only then."""
    states, log = CleaningStates(), make_log()
    announced = list[bool]()
    log.clean_state.on_change = lambda: announced.append(states.may_clean(log))
    with states.pause(log):
        with states.pause(log):
            assert states.announce_later(log)
        assert not states.may_clean(log)
        assert not announced
    assert announced == [True]
