"""The workers of compaction: a child process with low priority, or a thread of the disk.

Rules: a pass reads the closed segments of a log and writes ``.cleaned`` files; it changes nothing
else. Leaving the context of a pass ends it: the child is killed and waited for, so that it cannot
write anything afterwards. A child that has completed its pass is kept for the next one.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import trio

from kwire import attrs
from kwire.log.compaction.job import (
    ActiveProducers,
    CleanedGroup,
    CleaningFailed,
    CleaningJob,
    CleaningSummary,
)
from kwire.log.disk import Disk
from kwire.log.threads import InThread

CHUNK: Final = 64 << 10
Pass = Generator[CleanedGroup, ActiveProducers | None, CleaningSummary]
Clean = Callable[[Disk, CleaningJob, Callable[[int], None]], Pass]
Step = Callable[[ActiveProducers | None], Awaitable[CleanedGroup | CleaningSummary]]
"""Runs the next group of a pass; raises OSError, CleaningFailed or :class:`WorkerEnded`.

The argument replaces the job's active producers, unless it is None.
"""


class WorkerEnded(Exception):
    """The child process ended in the middle of a pass."""


class CleaningRunner(Protocol):
    """A worker, which runs one pass after another."""

    def running(self, disk: Disk, root: str, job: CleaningJob) -> AbstractAsyncContextManager[Step]:
        """Return a context in which a pass runs; ``root`` is the path of the disk's directory."""

    async def close(self) -> None:
        """End the worker; the next pass restarts it."""


@attrs.define(eq=False)
class ThreadRunner:
    """Runs passes in threads of the disk: for tests and simulations."""

    in_thread: InThread
    clean: Clean

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
class ProcessRunner:
    """Runs passes in a child process (:mod:`kwire.log.compaction.worker`)."""

    command: tuple[str, ...] = (sys.executable, "-m", "kwire.log.compaction.worker")
    _process: trio.Process | None = attrs.field(init=False, default=None)
    _received: bytearray = attrs.field(init=False, factory=bytearray)

    @asynccontextmanager
    async def running(self, disk: Disk, root: str, job: CleaningJob) -> AsyncIterator[Step]:
        del disk  # The child opens the directory itself.
        from kwire.log.compaction import messages

        is_complete, request = False, messages.pack(("clean", root, job))

        async def step(active: ActiveProducers | None) -> CleanedGroup | CleaningSummary:
            nonlocal is_complete, request
            await self._send(request)
            request = messages.pack(("next",) if active is None else ("next", active))
            size = messages.HEADER.unpack(await self._receive(messages.HEADER.size))[0]
            match messages.unpack_answer(await self._receive(size)):
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
                    raise WorkerEnded(f"the compaction process sent {other!r}")

        try:
            await self._start()
            yield step
        finally:
            if not is_complete:
                await self.close()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True):
            with suppress(OSError):
                process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
            self._received.clear()

    async def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        await self.close()
        try:
            self._process = await trio.lowlevel.open_process(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except OSError as error:  # The log directory is not at fault.
            raise WorkerEnded(f"cannot start the compaction process: {error}") from error

    async def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(data)
        except trio.BrokenResourceError:
            raise WorkerEnded("the compaction process has ended") from None

    async def _receive(self, size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        received = self._received
        while len(received) < size:
            data = await self._process.stdout.receive_some(CHUNK)
            if not data:
                status = await self._process.wait()
                raise WorkerEnded(f"the compaction process ended with status {status}")
            received += data
        message = bytes(received[:size])
        del received[:size]
        return message


def _python_path() -> str:
    """Return the child's search path for modules, starting with the directory of this package."""
    root = str(Path(__file__).resolve().parents[3])
    rest = os.environ.get("PYTHONPATH", "")
    return f"{root}{os.pathsep}{rest}" if rest else root
