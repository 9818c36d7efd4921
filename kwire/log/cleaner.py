"""Schedules compaction over all directories: finds the logs that are due, and runs the workers.

Rules: the dirtiest log of all directories comes first; ``log.cleaner.threads`` logs are cleaned
concurrently. A log is assessed after a change (a closed segment, new settings, the end of a pass)
or when one of its lags expires; changes are collected for ``log.cleaner.backoff.ms``. So a node
without changes does not wake. A failed pass leaves its log unchanged: a disk error takes the
directory offline, damage excludes the log until a restart, and after any other failure the pass is
retried. Changed settings abort the running passes, as in Kafka, which restarts its cleaner threads.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.lazy_heap import LazyHeap
from kwire.log.compaction.choice import NEVER_MS, Assessment
from kwire.log.compaction.job import CleaningFailed, CleaningSummary
from kwire.log.config import CleanerSettings
from kwire.log.deadlines import Deadlines
from kwire.log.directories.cleaning_runner import CleaningRunner
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.worker_process import IoLimit, WorkerEnded
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.waits import Signal

logger = logging.getLogger(__name__)

RESTART_SECONDS: Final = 1.0
RESTART_MAX_SECONDS: Final = 60.0
"""The largest delay before a worker whose process died is restarted; the delay doubles up to it."""


@attrs.define(eq=False, repr=False)
class WorkerStats:
    """The last pass of one worker."""

    summary: CleaningSummary | None = None
    seconds: float = 0.0
    failures: int = 0
    """The number of consecutive times that the worker's process ended unexpectedly."""


@attrs.define(eq=False, repr=False)
class LogCleaner:
    """The compaction of all logs of a broker."""

    services: dict[Disk, DirectoryService]
    clock: Clock
    make_runner: Callable[[], CleaningRunner]
    settings: CleanerSettings
    workers: list[WorkerStats] = attrs.field(init=False, factory=list)
    _marked: dict[PartitionLog, None] = attrs.field(init=False, factory=dict)
    """Logs that have changed since they were last assessed."""
    _changed: Signal = attrs.field(init=False, factory=Signal)
    _timers: Deadlines[PartitionLog] = attrs.field(init=False, factory=Deadlines)
    """The times at which logs are assessed even without a change."""
    _due: LazyHeap[PartitionLog] = attrs.field(init=False, factory=LazyHeap)
    """The logs to clean; the one with the largest cleanable share comes first."""
    _has_due: Signal = attrs.field(init=False, factory=Signal)
    _assessments: dict[PartitionLog, Assessment] = attrs.field(init=False, factory=dict)
    _looked_at: float | None = attrs.field(init=False, default=None)
    _scope: trio.CancelScope | None = attrs.field(init=False, default=None)
    """The cancel scope of the tasks that use the settings."""

    def __attrs_post_init__(self) -> None:
        for service in self.services.values():
            service.on_compactable = self.mark

    def mark(self, log: PartitionLog) -> None:
        """Assess a log soon, because it may have become due."""
        self._marked[log] = None
        self._changed.set()

    def configure(self, settings: CleanerSettings) -> None:
        """Apply changed settings; running passes are restarted."""
        if settings != self.settings:
            self.settings = settings
            if self._scope is not None:
                self._scope.cancel()

    async def run(self) -> None:
        """Clean logs until cancelled."""
        while True:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._look_at_timed)
                    nursery.start_soon(self._look_at_marked)
                    limit = IoLimit(self.settings.bytes_per_second)
                    self.workers = [WorkerStats() for _ in range(self.settings.threads)]
                    for stats in self.workers:
                        nursery.start_soon(self._work, stats, limit)

    # -- which logs are due

    async def _look_at_timed(self) -> None:
        while True:
            # A separate function, whose frame does not keep a deleted log alive.
            await self._mark_timed()

    async def _mark_timed(self) -> None:
        for log in await self._timers.wait(self.clock):
            self.mark(log)

    async def _look_at_marked(self) -> None:
        while True:
            await self._changed.wait()
            await trio.sleep(self.settings.backoff_ms / 1000)
            self._changed.clear()
            slices = Slices(self.clock.now)
            while self._marked:  # After a cancellation, the remaining logs stay marked.
                await self._look_at(next(iter(self._marked)))
                await slices.pause()
            self._looked_at = self.clock.now()
            await self._forget_removed(slices)
            self._has_due.notify()

    async def _look_at(self, log: PartitionLog) -> None:
        assessment = await self._assess(log)
        self._marked.pop(log, None)
        self._due.discard(log)
        if assessment is None:
            self._assessments.pop(log, None)
            return
        self._assessments[log] = assessment
        if self._is_uncleanable(log):
            return
        if assessment.is_due:
            self._due.push(log, -assessment.cleanable_ratio)
        now, now_ms = self.clock.now(), self.clock.now_ms()
        if assessment.retry_ms < NEVER_MS:
            self._timers.arm(log, now + max(assessment.retry_ms - now_ms, 0) / 1000)
        if assessment.is_blocked:  # Nothing announces an advance of the last stable offset.
            self._look_later(log)

    async def _assess(self, log: PartitionLog) -> Assessment | None:
        """Return what could be cleaned of a log; None if it is not compacted, or not here."""
        if not self._is_here(log):
            return None
        try:
            return await self.services[log.disk].cleaning.assess(log)
        except (OSError, KafkaStorageError) as error:
            self._on_disk_error(log, error)
            if self._is_here(log):  # Too many open files, or retention removed a segment.
                self._look_later(log)
            return None

    def _look_later(self, log: PartitionLog) -> None:
        self._timers.arm(log, self.clock.now() + max(self.settings.backoff_ms / 1000, 1.0))

    async def _forget_removed(self, slices: Slices) -> None:
        for log in list(self._assessments):
            if not self._is_here(log):
                self._assessments.pop(log, None)
                self._due.discard(log)
                self._timers.disarm(log)
            await slices.pause()

    def _is_here(self, log: PartitionLog) -> bool:
        """Return whether a log is still in a directory that is online, and still compacted."""
        directory = self.services[log.disk].directory
        return directory.online and directory.holds(log) and log.config.cleanup_compact

    def _is_uncleanable(self, log: PartitionLog) -> bool:
        return self.services[log.disk].busy.cleaning.is_uncleanable(log)

    # -- workers

    async def _take(self) -> PartitionLog | None:
        """Remove the dirtiest log that may be cleaned now from the due logs, and return it."""
        slices = Slices(self.clock.now)
        while dirtiest := self._due.pop_up_to(inf, at_most=1):
            (log,) = dirtiest
            service = self.services[log.disk]
            # When the pass or pause that forbids this pass ends, it marks the log again.
            if not service.busy.cleaning.announce_later(log) and service.cleaning.may_clean(log):
                return log
            await slices.pause()  # A directory that failed may have had thousands of due logs.
        return None

    async def _work(self, stats: WorkerStats, limit: IoLimit) -> None:
        """Clean one log after another; stop the worker's process while no log is due."""
        runner = self.make_runner()
        runner.limit = limit
        try:
            while True:
                log = await self._take()
                if log is None:
                    await runner.close()
                    log = await self._take()  # A log may have become due meanwhile.
                if log is None:
                    await self._has_due.wait()
                else:
                    await self._clean(log, runner, stats)
        finally:
            await runner.close()

    async def _clean(self, log: PartitionLog, runner: CleaningRunner, stats: WorkerStats) -> None:
        service, began = self.services[log.disk], self.clock.now()
        try:
            summary = await service.cleaning.clean(log, runner, self.settings)
        except WorkerEnded as error:
            logger.error("compaction process ended partition=%s error=%s", log.partition, error)
            await self._back_off(stats)
        except (OSError, KafkaStorageError) as error:
            self._on_disk_error(log, error)
        except Exception as error:  # Damage or a bug: another pass would fail too.
            service.busy.cleaning.note_uncleanable(log)
            text = "compaction failed, log excluded until a restart partition=%s error=%s"
            is_fault = not isinstance(error, CleaningFailed)
            logger.error(text, log.partition, error, exc_info=is_fault)
            return
        else:
            stats.failures = 0
            if summary is not None:
                stats.summary, stats.seconds = summary, self.clock.now() - began
        if self._is_here(log):
            self.mark(log)

    async def _back_off(self, stats: WorkerStats) -> None:
        stats.failures += 1
        await trio.sleep(min(RESTART_SECONDS * 2 ** (stats.failures - 1), RESTART_MAX_SECONDS))

    def _on_disk_error(self, log: PartitionLog, error: Exception) -> None:
        """Take the directory offline if the error says so.

        The errors of a worker's process are judged only here.
        """
        service = self.services[log.disk]
        if isinstance(error, OSError) and service.directory.holds(log):
            log.disk.judge(error)
        service.directory.note_failure()
        logger.error("compaction failed partition=%s error=%s", log.partition, error)

    # -- metrics

    def uncleanable(self) -> Iterator[tuple[LogDirectory, list[PartitionLog]]]:
        """Yield each directory with its logs that cannot be cleaned until a restart."""
        for service in self.services.values():
            logs = service.busy.cleaning.uncleanable.values()
            yield service.directory, [log for log in logs if service.directory.holds(log)]

    def uncleanable_bytes(self, logs: Iterable[PartitionLog]) -> int:
        """Return how many bytes of these logs could be cleaned, by their last assessments."""
        assessments = (self._assessments.get(log) for log in logs)
        return sum(a.cleanable_bytes for a in assessments if a is not None)

    def dirty_percents(self) -> Iterator[int]:
        """Yield the cleanable share of each log, by the latest assessments; 0 if it is excluded."""
        for log, assessment in list(self._assessments.items()):
            yield 0 if self._is_uncleanable(log) else int(100 * assessment.cleanable_ratio)

    def delays_s(self) -> Iterator[int]:
        """Yield by how much each log exceeds its ``max.compaction.lag.ms``; 0 if it is not due."""
        for log, assessment in list(self._assessments.items()):
            yield assessment.delay_ms // 1000 if log in self._due else 0

    @property
    def since_last_run_ms(self) -> int:
        """The time since logs were last assessed; 0 while no log has changed since."""
        if not self._marked or self._looked_at is None:
            return 0
        return int((self.clock.now() - self._looked_at) * 1000)

    @property
    def recopy_percent(self) -> int:
        """The bytes written per hundred bytes read in the workers' last passes."""
        summaries = [s.summary for s in self.workers if s.summary is not None]
        read = sum(summary.bytes_read for summary in summaries)
        return 100 * sum(summary.bytes_written for summary in summaries) // max(read, 1)

    @property
    def max_map_percent(self) -> int:
        """The largest share of an offset map that the workers' last passes used."""
        used = (s.summary.map_utilization for s in self.workers if s.summary is not None)
        return int(100 * max(used, default=0.0))

    @property
    def max_clean_s(self) -> int:
        """The duration of the longest of the workers' last passes."""
        return int(max((stats.seconds for stats in self.workers), default=0.0))

    @property
    def dead_count(self) -> int:
        """The number of workers that have cleaned nothing since their process died."""
        return sum(stats.failures > 0 for stats in self.workers)
