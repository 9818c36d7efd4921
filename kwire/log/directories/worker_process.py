"""A child process of low priority that works on closed segments for its node.

Rules: a request and its answer are messages of :mod:`kwire.log.compaction.messages`. A process that
is no longer needed, or whose answer is no longer awaited, is killed and waited for, so that it
cannot write anything afterwards. A process reports the bytes that it reads and writes, and waits
until the node lets it continue, so that several processes can share one limit.
"""

import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from kwire.log.compaction.messages import Answer, Request

CHUNK: Final = 64 << 10
COMMAND: Final = (sys.executable, "-m", "kwire.log.compaction.worker")
CREDIT_S: Final = 0.1
"""The time without a wait that counts for the rate: longer than a process takes for one report."""


class WorkerEnded(Exception):
    """The child process could not start, or ended before it answered."""


class IoLimit:
    """The limit on the rate at which worker processes read and write, all together."""

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self.bytes_per_second = bytes_per_second
        """No limit if negative; with 0, processes wait until the setting changes.

        Apache's cleaner goes on waiting even then, and does not let its node stop.
        """
        self._free_at = -math.inf

    async def wait(self, size: int) -> None:
        """Account for bytes that a process has used, and wait until it may use more.

        The time in which it used them counts too; otherwise the rate would never be reached.
        """
        begun, rate = trio.current_time() - CREDIT_S, self.bytes_per_second
        self._free_at = max(self._free_at, begun) + (size / rate if rate else math.inf)
        await trio.sleep_until(self._free_at)


@attrs.define(eq=False, repr=False)
class WorkerProcess:
    """A child process that is started for its first request and restarted after it has ended."""

    command: tuple[str, ...] = COMMAND
    limit: IoLimit = attrs.field(factory=IoLimit)
    _process: trio.Process | None = attrs.field(init=False, default=None)
    _received: bytearray = attrs.field(init=False, factory=bytearray)

    async def start(self) -> None:
        """Start the process unless it is running; raises :class:`WorkerEnded`."""
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
        except OSError as error:  # The error is not the log directory's.
            raise WorkerEnded(f"cannot start the worker process: {error}") from error

    async def ask(self, request: "Request") -> "Answer":
        """Return the answer to a request; raises :class:`WorkerEnded`.

        After a cancellation the process must be closed, because its answer may still arrive.
        """
        from kwire.log.compaction import messages

        await self._send(messages.pack(request))
        while True:
            size = messages.HEADER.unpack(await self._receive(messages.HEADER.size))[0]
            match messages.unpack_answer(await self._receive(size)):
                case ("used", int(byte_count)):
                    await self.limit.wait(byte_count)
                    await self._send(messages.pack(("more",)))
                case answer:
                    return answer

    async def close(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
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

    async def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(data)
        except trio.BrokenResourceError:
            raise WorkerEnded("the worker process has ended") from None

    async def _receive(self, size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        received = self._received
        while len(received) < size:
            data = await self._process.stdout.receive_some(CHUNK)
            if not data:
                status = await self._process.wait()
                raise WorkerEnded(f"the worker process ended with status {status}")
            received += data
        message = bytes(received[:size])
        del received[:size]
        return message


def _python_path() -> str:
    """Return the child's search path for modules, starting with the directory of this package."""
    root = str(Path(__file__).resolve().parents[3])
    rest = os.environ.get("PYTHONPATH", "")
    return f"{root}{os.pathsep}{rest}" if rest else root
