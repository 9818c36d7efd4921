"""The workers of compaction: child processes with low priority.

Rules: a pass reads the closed segments of a log and writes ``.cleaned`` files; it changes nothing
else. Leaving the context of a pass ends it: the child is killed and waited for, so that it cannot
write anything afterwards. A child that has completed its pass is kept for the next one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import attrs

from kwire.log.compaction.job import (
    ActiveProducers,
    CleanedGroup,
    CleaningFailed,
    CleaningJob,
    CleaningSummary,
)
from kwire.log.directories.worker_process import COMMAND, IoLimit, WorkerEnded, WorkerProcess
from kwire.log.disk import Disk

Pass = Generator[CleanedGroup, ActiveProducers | None, CleaningSummary]
Clean = Callable[[Disk, CleaningJob, Callable[[int], None]], Pass]
Step = Callable[[ActiveProducers | None], Awaitable[CleanedGroup | CleaningSummary]]
"""Runs the next group of a pass; raises OSError, CleaningFailed or WorkerEnded.

The argument replaces the job's active producers, unless it is None.
"""


class CleaningRunner(Protocol):
    """A worker, which runs one pass after another."""

    limit: IoLimit
    """The limit of the bytes that all workers of a node together read and write."""

    def running(self, disk: Disk, root: str, job: CleaningJob) -> AbstractAsyncContextManager[Step]:
        """Return a context in which a pass runs; ``root`` is the path of the disk's directory."""

    async def close(self) -> None:
        """End the worker; the next pass restarts it."""


@attrs.define(eq=False, repr=False)
class ProcessRunner:
    """Runs passes in a child process (:mod:`kwire.log.compaction.worker`)."""

    command: tuple[str, ...] = COMMAND
    limit: IoLimit = attrs.field(init=False, factory=IoLimit)
    _worker: WorkerProcess = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._worker = WorkerProcess(self.command)

    @asynccontextmanager
    async def running(self, disk: Disk, root: str, job: CleaningJob) -> AsyncIterator[Step]:
        del disk  # The child opens the directory itself.
        is_complete, has_begun = False, False

        async def step(active: ActiveProducers | None) -> CleanedGroup | CleaningSummary:
            nonlocal is_complete, has_begun
            following = ("next",) if active is None else ("next", active)
            request = following if has_begun else ("clean", root, job)
            has_begun = True
            match await self._worker.ask(request):
                case ("group", CleanedGroup() as group):
                    return group
                case ("done", CleaningSummary() as summary):
                    is_complete = True
                    return summary
                case ("failed", str(text)):
                    is_complete = True
                    raise CleaningFailed(text)
                case ("os", int(number), text, path):
                    is_complete = True
                    raise OSError(number, text, path)
                case other:
                    raise WorkerEnded(f"unexpected response from the compaction process: {other!r}")

        try:
            self._worker.limit = self.limit
            await self._worker.start()
            yield step
        finally:
            if not is_complete:
                await self.close()

    async def close(self) -> None:
        await self._worker.close()
