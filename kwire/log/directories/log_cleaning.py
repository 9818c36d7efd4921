"""One compaction pass over one log of a directory.

Rules: everything that the pass reads is flushed first, and the recovery point is stored above it,
so that recovery does not have to judge the gaps that compaction leaves. A pass replaces segments
only if nothing was removed from the log since the pass began, and if the log is still compacted.
The cleaner's checkpoint is written last, once the new segments are durable. However a pass ends,
its files that are not in place are removed before the next pass starts.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.log.aborted_transactions import find_aborted
from kwire.log.cold_lookups import preparation, run_all
from kwire.log.compaction.choice import NEVER_MS, Assessment, LogFacts, SegmentFacts, assess
from kwire.log.compaction.job import (
    ActiveProducers,
    CleaningJob,
    CleaningSummary,
    SourceSegment,
)
from kwire.log.config import CleanerSettings
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.cleaning_runner import CleaningRunner
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.flusher import LogFlusher
from kwire.log.directories.log_retention import LogRetention
from kwire.log.directories.segment_swap import PassVoid, SegmentSwap, remove_cleaned
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread

logger = logging.getLogger(__name__)

SLICE_PRODUCERS: Final = 200


@attrs.define(eq=False, repr=False)
class LogCleaning:
    """Cleans the logs of one directory."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    busy: BusyLogs
    checkpoints: Checkpointer
    flusher: LogFlusher
    retention: LogRetention
    swap: SegmentSwap

    # -- choice

    def may_clean(self, log: PartitionLog) -> bool:
        """Return whether a pass over a log may start now."""
        is_here = self.directory.online and self.directory.holds(log)
        return is_here and log.config.cleanup_compact and self.busy.cleaning.may_clean(log)

    async def assess(self, log: PartitionLog) -> Assessment:
        """Return what a pass over a log would clean now; raises OSError and KafkaStorageError."""
        config, slices = log.config, Slices(self.clock.now)
        facts = list[SegmentFacts]()
        for segment in list(log.segments):
            largest = first = -1
            if config.min_compaction_lag_ms > 0:
                largest = await self._largest_timestamp(segment)
                if largest < 0:
                    largest = segment.modified_ms
            if config.max_compaction_lag_ms < NEVER_MS:
                first = await self._first_timestamp(segment)
            facts.append(SegmentFacts(segment.base_offset, segment.size, largest, first))
            await slices.pause()
        high_watermark = min(log.high_watermark, log.writer.written_offset)
        last_stable = log.producers.last_stable_offset(high_watermark, log.log_start)
        return assess(
            LogFacts(
                segments=facts,
                local_start=log.local_start,
                end_offset=log.end_offset,
                last_stable_offset=last_stable,
                clean_end=log.clean_state.clean_end,
                config=config,
            ),
            self.clock.now_ms(),
        )

    async def _largest_timestamp(self, segment: Segment) -> int:
        for job in preparation(segment.largest_timestamp, partial(warming.ages, segment)):
            await self.in_thread(segment.files.disk, partial(run_all, [job]))
        return segment.largest_timestamp()

    async def _first_timestamp(self, segment: Segment) -> int:
        """Return the first batch's timestamp, which a thread reads after a restart."""
        if segment.first_timestamp < 0 < segment.size:
            segment.file.pin()
            try:
                with trio.CancelScope(shield=True):
                    job: Callable[[], object] = segment.load_first_timestamp
                    await self.in_thread(segment.files.disk, partial(_call, job))
            finally:
                segment.file.unpin()
        return segment.first_timestamp

    # -- a pass

    async def clean(
        self, log: PartitionLog, runner: CleaningRunner, settings: CleanerSettings
    ) -> CleaningSummary | None:
        """Clean a log if it is due; return None if it is not due, or if the pass was aborted.

        :meth:`may_clean` must be true. Raises OSError, KafkaStorageError, CleaningFailed and
        WorkerEnded; the log is intact then.
        """
        summary: CleaningSummary | None = None
        scope = trio.CancelScope()
        with self.busy.cleaning.cleaning(log, scope.cancel):
            with scope:
                try:
                    summary = await self._clean(log, runner, settings)
                except PassVoid:
                    logger.info("compaction aborted partition=%s", log.partition)
                finally:
                    with trio.CancelScope(shield=True):
                        await self._remove_leftovers(log)
            if summary is not None:
                await self._complete(log, summary)
        if log in self.retention.postponed:
            await self.retention.retain(log)
        return summary

    async def _clean(
        self, log: PartitionLog, runner: CleaningRunner, settings: CleanerSettings
    ) -> CleaningSummary | None:
        removal_count = log.clean_state.removal_count

        def is_valid() -> bool:
            is_whole = log.clean_state.removal_count == removal_count
            return is_whole and log.config.cleanup_compact and self.directory.holds(log)

        assessment = await self.assess(log)
        if not assessment.is_due:
            return None
        await self.flusher.flush(log, log.segments.active.base_offset, indexes=True)
        if not await self.checkpoints.write(names.RECOVERY_POINTS):
            return None
        job = await self._job(log, assessment, settings)
        async with runner.running(log.disk, self.directory.name, job) as step:
            while True:
                active = await self._active_producers(log)
                result = await step(active)
                if isinstance(result, CleaningSummary):
                    break
                await self.swap.swap(log, result, is_valid)
        if not is_valid():
            raise PassVoid
        log.clean_state.clean_end = result.clean_end
        return result

    async def _complete(self, log: PartitionLog, summary: CleaningSummary) -> None:
        """Store the cleaner's checkpoint; meanwhile the log may be cut again."""
        await self.checkpoints.write(names.CLEANER_OFFSETS)
        logger.info(
            "compacted partition=%s clean_end=%d bytes=%d/%d records=%d/%d",
            log.partition,
            summary.clean_end,
            summary.bytes_written,
            summary.bytes_read,
            summary.records_kept,
            summary.records_read,
        )
        if summary.keyless_dropped:
            logger.warning(
                "compaction removed records without a key partition=%s records=%d",
                log.partition,
                summary.keyless_dropped,
            )

    async def _job(
        self, log: PartitionLog, assessment: Assessment, settings: CleanerSettings
    ) -> CleaningJob:
        sources, slices = list[SourceSegment](), Slices(self.clock.now)
        for segment in list(log.segments):
            if segment.base_offset >= assessment.end_offset:
                break
            largest = await self._largest_timestamp(segment)
            has_txn_index = not segment.indexes.aborted.has_no_file
            sources.append(
                SourceSegment(
                    segment.base_offset, segment.size, largest, segment.modified_ms, has_txn_index
                )
            )
            await slices.pause()
        next_base = assessment.end_offset
        later = log.segments[log.segments.index_of(next_base) :]
        await self.in_thread(log.disk, warming.read_aborted(later, next_base))
        aborted = find_aborted(log.segments, next_base, next_base)
        rate = settings.bytes_per_second
        return CleaningJob(
            directory=log.segments.directory,
            segments=tuple(sources),
            next_base=next_base,
            first_dirty=assessment.first_dirty,
            end_offset=next_base,
            now_ms=self.clock.now_ms(),
            later_aborted=tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
            config=log.config,
            memory_bytes=settings.worker_map_bytes,
            load_factor=settings.load_factor,
            buffer_bytes=settings.worker_buffer_bytes,
            active_producers=await self._active_producers(log),
            bytes_per_second=rate if 0 <= rate < 1e300 else math.inf,
        )

    async def _active_producers(self, log: PartitionLog) -> ActiveProducers:
        """Return each producer's epoch and last data offset, which a pass keeps."""
        active: dict[int, tuple[int, int | None]] = {}
        slices = Slices(self.clock.now)
        for count, producer in enumerate(list(log.producers.all()), 1):
            last = producer.batches[-1].last_offset if producer.batches else None
            active[producer.producer_id] = producer.epoch, last
            if not count % SLICE_PRODUCERS:
                await slices.pause()
        return active

    async def _remove_leftovers(self, log: PartitionLog) -> None:
        """Remove the files of a group that is not in place, if the pass left any."""
        if not self.directory.online or not self.directory.holds(log):
            return
        remove = partial(remove_cleaned, log.disk, log.segments.directory)
        await self.in_thread(log.disk, remove)


def _call(job: Callable[[], object]) -> None:
    job()
