"""The workers of a scrub: a child process with low priority, or a thread of the disk.

Rule: a check only reads. A child whose check was cancelled is killed; otherwise it is kept for the
next check.
"""

from typing import Protocol

from kwire import attrs
from kwire.log.directories.worker_process import WorkerEnded, WorkerProcess
from kwire.log.disk import Disk
from kwire.log.scrub.job import SegmentJob, SegmentReport
from kwire.log.scrub.segment_check import check_segment
from kwire.log.threads import InThread


class SegmentChecker(Protocol):
    """A worker, which checks one segment after another."""

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        """Check a segment; ``root`` is the path of the disk's directory.

        Raises OSError and :class:`WorkerEnded`.
        """

    async def close(self) -> None:
        """End the worker; the next check restarts it."""


@attrs.define(eq=False)
class ThreadChecker:
    """Checks segments in threads of the disk, at any rate: for tests and simulations."""

    in_thread: InThread

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        del root
        reports: list[SegmentReport] = []
        await self.in_thread(
            disk, lambda: reports.append(check_segment(disk, job, lambda size: None))
        )
        return reports[0]

    async def close(self) -> None: ...


@attrs.define(eq=False)
class ProcessChecker:
    """Checks segments in a child process (:mod:`kwire.log.compaction.worker`)."""

    _worker: WorkerProcess = attrs.field(factory=WorkerProcess)

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        del disk  # The child opens the directory itself.
        has_answered = False
        try:
            await self._worker.start()
            answer = await self._worker.ask(("check", root, job))
            has_answered = True
        finally:
            if not has_answered:
                await self.close()
        match answer:
            case ("checked", SegmentReport() as report):
                return report
            case ("os", int(number), text, path):
                raise OSError(number, text, path)
            case other:
                raise WorkerEnded(f"the scrub's process sent {other!r}")

    async def close(self) -> None:
        await self._worker.close()
