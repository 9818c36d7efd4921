"""The workers of a scrub: child processes with low priority.

Rule: a check only reads. A child whose check was cancelled is killed; otherwise it is kept for the
next check.
"""

from typing import Protocol

import attrs

from kwire.log.directories.worker_process import WorkerEnded, WorkerProcess
from kwire.log.disk import Disk
from kwire.log.scrub.job import SegmentJob, SegmentReport


class SegmentChecker(Protocol):
    """A worker, which checks one segment after another."""

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        """Check a segment; ``root`` is the path of the disk's directory.

        Raises OSError and :class:`WorkerEnded`.
        """

    async def close(self) -> None:
        """End the worker; the next check restarts it."""


@attrs.define(eq=False, repr=False)
class ProcessChecker:
    """Checks segments in a child process (:mod:`kwire.log.compaction.worker`)."""

    _worker: WorkerProcess = attrs.field(factory=WorkerProcess)

    async def check(self, disk: Disk, root: str, job: SegmentJob) -> SegmentReport:
        del disk  # The child opens the directory itself.
        self._worker.limit.bytes_per_second = job.bytes_per_second
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
                raise WorkerEnded(f"unexpected response from the scrub process: {other!r}")

    async def close(self) -> None:
        await self._worker.close()
