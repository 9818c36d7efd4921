"""The main function of a cleaner's process, which cleans one log at a time for its node.

Rules: it uses as little as possible of what the node needs: it runs at the lowest priority for CPU
and, on Linux, as a batch process. It ends when its stdin ends, also in the middle of a group: the
node may close the pipe or die at any time, and what it has written is only ``.cleaned`` files. It
ignores the Ctrl-C that a terminal sends to it as well: the node ends it. It imports no trio. While
it cleans a log it locks the partition's directory: the worker of a node that was killed may live
for a moment beside that of the next node, and both would write the same files.
The messages are in :mod:`kwire.log.compaction.messages`.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO, Final

from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import ActiveProducers, CleaningFailed, CleaningJob
from kwire.log.compaction.messages import HEADER, Answer, Request, pack, unpack_request
from kwire.log.disk import RealDisk

NICENESS: Final = 19
CHECK_S: Final = 0.05
"""The longest time between two looks at stdin while a group is cleaned."""


class Closed(Exception):
    """The node has closed the pipe, or sent a message while a group was cleaned."""


class Throttle:
    """Keeps the bytes read and written to a rate, and notices when the node is gone."""

    def __init__(
        self,
        bytes_per_second: float,
        wait_input: Callable[[float], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wait_input`` waits up to some seconds and returns whether stdin ended meanwhile."""
        self._rate = bytes_per_second
        self._wait_input = wait_input
        self._now = now
        self._free_at = self._checked_at = now()

    def __call__(self, size: int) -> None:
        """Account for bytes read or written, and wait if that was too fast."""
        now = self._now()
        self._free_at = max(self._free_at, now) + size / self._rate
        delay_s = self._free_at - now
        if delay_s < CHECK_S:  # Short waits add up to one that is worth a call.
            delay_s = 0.0
            if now - self._checked_at < CHECK_S:
                return
        self._checked_at = now + delay_s
        if self._wait_input(delay_s):
            raise Closed


class Worker:
    """The conversation with the node."""

    def __init__(self, requests: int, answers: BinaryIO) -> None:
        """``requests`` is a descriptor, so that no buffer hides a request from a wait."""
        self._requests = requests
        self._answers = answers

    def run(self) -> None:
        """Serve jobs until the node closes the pipe."""
        with suppress(Closed, BrokenPipeError):
            while True:
                match self._read():
                    case ("clean", str(root), CleaningJob() as job):
                        self._clean(root, job)
                    case other:
                        raise ValueError(f"a request that is not expected now: {other!r}")

    def _clean(self, root: str, job: CleaningJob) -> None:
        """Run one pass; a failure is answered, and the next job may be another log's."""
        throttle = Throttle(job.bytes_per_second, self._wait_input)
        disk = RealDisk(root)
        disk.full = True  # What the node has in reserve is for the node alone.
        groups = clean(disk, job, throttle)
        active_producers: ActiveProducers | None = None
        lock = -1
        try:
            lock = self._lock(os.path.join(root, job.directory))
            while True:
                group = groups.send(active_producers)
                self._write(("group", group))
                active_producers = self._read_next()
        except StopIteration as end:
            self._write(("done", end.value))
        except CleaningFailed as error:
            self._write(("failed", str(error)))
        except BrokenPipeError:
            raise
        except OSError as error:
            self._write(("os", error.errno, error.strerror, error.filename))
        finally:
            if lock >= 0:
                os.close(lock)

    def _lock(self, path: str) -> int:
        """Lock a directory, which the end of this process unlocks; return the descriptor.

        Where directories cannot be locked, -1: then the node's own order of passes has to do.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            return -1
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._wait_input(CHECK_S):
                    raise Closed from None
            except OSError:  # Some network file systems have no locks.
                os.close(lock)
                return -1
            else:
                return lock

    def _read_next(self) -> ActiveProducers | None:
        """Wait until the group is in place; return the active producers if the node sent them."""
        match self._read():
            case ("next",):
                return None
            case ("next", Mapping() as active_producers):
                return active_producers
            case other:
                raise ValueError(f"a request that is not expected now: {other!r}")

    def _read(self) -> Request:
        size = HEADER.unpack(self._read_exactly(HEADER.size))[0]
        return unpack_request(self._read_exactly(size))

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(self._requests, size - len(data))
            if not piece:
                raise Closed
            data += piece
        return data

    def _write(self, answer: Answer) -> None:
        self._answers.write(pack(answer))
        self._answers.flush()

    def _wait_input(self, delay_s: float) -> bool:
        """Wait; return whether stdin ended, which ends the wait."""
        if os.name == "nt":
            time.sleep(delay_s)  # Its select knows sockets only; the node kills the process.
            return False
        return bool(select.select([self._requests], [], [], delay_s)[0])


def lower_priority() -> None:
    """Leave the CPU to others where the system can do that."""
    with suppress(AttributeError, OSError):
        os.nice(NICENESS)
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Serve the node at stdin and stdout; what else is printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    Worker(0, answers).run()


if __name__ == "__main__":
    main()
