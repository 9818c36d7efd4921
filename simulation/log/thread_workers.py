"""The cleaner's and the scrub's workers as threads of the disk, in place of child processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from kwire.log.compaction.job import ActiveProducers, CleanedGroup, CleaningJob, CleaningSummary
from kwire.log.directories.cleaning_runner import Clean, Step
from kwire.log.directories.worker_process import IoLimit
from kwire.log.disk import Disk
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.scrub.segment_check import check_segment
from kwire.log.threads import InThread


@attrs.define(eq=False)
class ThreadRunner:
    """Runs passes in threads of the disk."""

    in_thread: InThread
    clean: Clean
    limit: IoLimit = attrs.field(init=False, factory=IoLimit)

    @asynccontextmanager
    async def running(self, disk: Disk, root: str, job: CleaningJob) -> AsyncIterator[Step]:
        del root
        groups = self.clean(disk, job, lambda size: None)
        has_begun = False

        async def step(active: ActiveProducers | None) -> CleanedGroup | CleaningSummary:
            results: list[CleanedGroup | CleaningSummary] = []

            def run() -> None:
                try:
                    results.append(groups.send(active if has_begun else None))
                except StopIteration as end:
                    results.append(end.value)

            nonlocal has_begun
            with trio.CancelScope(shield=True):
                await self.in_thread(disk, run)
            has_begun = True
            await trio.lowlevel.checkpoint_if_cancelled()
            return results[0]

        try:
            yield step
        finally:
            groups.close()

    async def close(self) -> None: ...


@attrs.define(eq=False)
class ThreadChecker:
    """Checks segments in threads of the disk, at any rate."""

    in_thread: InThread

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        del root
        reports: list[SegmentReport] = []
        await self.in_thread(
            disk, lambda: reports.append(check_segment(disk, job, lambda size: None))
        )
        return reports[0]

    async def close(self) -> None: ...
