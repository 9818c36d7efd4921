"""kwire's cleaner over a partition's directory, as the broker runs it.

The log directory is opened with the checkpoints of a clean stop, one pass is run through
:class:`LogCleaning` (choice, flush, pass, swap, checkpoint), and the directory is closed again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from compat_tests.compaction.apache import Answer
from compat_tests.compaction.inputs import Pass
from kwire.drive import run_steps
from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings
from kwire.log.directories.cleaning_runner import CleaningRunner, ProcessRunner
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import RealDisk
from kwire.log.formats import checkpoints, names
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from kwire.types import TopicPartition
from simulation.log.thread_workers import ThreadRunner
from tests.support.log.threads import at_once


@attrs.frozen
class FixedClock:
    """trio's clock beside a wall clock that does not move."""

    wall_ms: int

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return self.wall_ms


def clean_directory(directory: Path, job: Pass, expected: Answer | None = None) -> Answer:
    """Clean a partition's directory if anything is cleanable; return what Apache's does."""
    del expected
    return trio.run(_clean, directory, job, _thread_runner)


def clean_in_process(directory: Path, job: Pass, expected: Answer | None = None) -> Answer:
    """Do the same in the child process that the broker uses."""
    del expected
    return trio.run(_clean, directory, job, ProcessRunner)


def _thread_runner() -> CleaningRunner:
    async def in_thread(disk: object, call: Callable[[], None]) -> None:
        await at_once(call)

    return ThreadRunner(in_thread, clean)


async def _clean(directory: Path, job: Pass, make_runner: Callable[[], CleaningRunner]) -> Answer:
    topic, _, number = directory.name.rpartition("-")
    partition = TopicPartition(topic, int(number))
    _write_checkpoints(directory.parent, partition, job)
    disk = RealDisk(str(directory.parent))
    settings = CleanerSettings(
        map_bytes=job.memory_bytes, load_factor=job.load_factor, buffer_bytes=2 * job.buffer_bytes
    )
    logs = LogManager(
        [LogDirectory(disk, str(directory.parent))],
        FixedClock(job.now_ms),
        threads=DiskThreads(at_once),
        make_runner=make_runner,
        cleaner_settings=settings,
    )
    config = attrs.evolve(job.config, min_cleanable_dirty_ratio=0.0)
    await logs.open(lambda topic: config)
    log = logs.get(*partition)
    assert log is not None
    log.high_watermark = job.high_watermark if job.high_watermark >= 0 else log.end_offset
    cleaning = logs.services[disk].cleaning
    assessment = await cleaning.assess(log)
    answer: Answer = {
        "cleanable_bytes": assessment.cleanable_bytes,
        "clean_bytes": assessment.clean_bytes,
    }
    runner = make_runner()
    try:
        summary = await cleaning.clean(log, runner, settings)
    finally:
        await runner.close()
        await logs.close()
    if summary is not None:
        answer |= {
            "uncleanable": assessment.end_offset,
            "clean_end": summary.clean_end,
            "records_read": summary.records_read,
            "records_kept": summary.records_kept,
            "keyless_dropped": summary.keyless_dropped,
        }
        stored, _ = run_steps(checkpoints.reading_offsets(disk, names.CLEANER_OFFSETS))
        assert stored == {partition: summary.clean_end}
    return answer


def _write_checkpoints(root: Path, partition: TopicPartition, job: Pass) -> None:
    """Write the files of a clean stop into the log directory."""
    offsets = {
        names.LOG_STARTS: job.start_offset,
        names.CLEANER_OFFSETS: job.first_dirty,
    }
    for name, offset in offsets.items():
        line = checkpoints.offset_line(partition, offset)
        (root / name).write_bytes(checkpoints.offsets_text([line]))
    (root / names.CLEAN_SHUTDOWN).write_bytes(checkpoints.clean_shutdown_text(1))
