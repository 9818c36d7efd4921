"""The main function of a worker's process, which cleans a log or checks a segment for its node.

Rules: it uses as few of the node's resources as possible: it runs with the lowest CPU priority and,
on Linux, as a batch process. It exits when its stdin ends, even in the middle of a group: the node
may close the pipe or die at any time, and the worker has only written ``.cleaned`` files. It
ignores a Ctrl-C, which a terminal also sends to it, because the node ends it. It does not import
trio. While it cleans a log, it locks the partition's directory: the worker of a killed node may
briefly outlive it and run beside the restarted node's worker, and both would write the same files.
The messages are in :mod:`kwire.log.compaction.messages`.
"""

import fcntl
import math
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
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import check_segment

NICENESS: Final = 19
CHECK_S: Final = 0.05
"""The time between two reports to the node at the full rate, and between two checks of stdin."""


class Closed(Exception):
    """The node has closed the pipe, or sent a message while a group was being cleaned."""


class Pace:
    """Reports the bytes read and written to the node, which limits the rate of all workers.

    It also notices when the node has gone away.
    """

    bytes_per_second = math.inf

    def __init__(
        self,
        report: Callable[[int], None],
        has_input: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``report`` returns when the node allows more; ``has_input`` if stdin is readable."""
        self._report = report
        self._has_input = has_input
        self._now = now
        self._checked_at = now()
        self._unreported = 0
        """Bytes that were not worth a message yet; the next job reports them too."""

    def __call__(self, size: int) -> None:
        """Account for bytes read or written, and wait if the rate is exceeded."""
        self._unreported += size
        if self._unreported >= self.bytes_per_second * CHECK_S:
            size, self._unreported = self._unreported, 0
            self._report(size)
        elif self._now() - self._checked_at >= CHECK_S:
            self._checked_at = self._now()
            if self._has_input():
                raise Closed


class Worker:
    """The conversation with the node."""

    def __init__(
        self, requests: int, answers: BinaryIO, now: Callable[[], float] = time.monotonic
    ) -> None:
        """``requests`` is a descriptor, so that no buffer hides a request from a wait."""
        self._requests = requests
        self._answers = answers
        self._pace = Pace(self._report, lambda: self._wait_input(0.0), now)

    def run(self) -> None:
        """Serve jobs until the node closes the pipe."""
        with suppress(Closed, BrokenPipeError):
            while True:
                match self._read():
                    case ("clean", str(root), CleaningJob() as job):
                        self._clean(root, job)
                    case ("check", str(root), SegmentJob() as segment_job):
                        self._check(root, segment_job)
                    case other:
                        raise ValueError(f"unexpected request: {other!r}")

    def _clean(self, root: str, job: CleaningJob) -> None:
        """Run one pass and report its result; a failed pass does not end the worker."""
        self._pace.bytes_per_second = job.bytes_per_second
        disk = RealDisk(root)
        disk.full = True  # The reserved space is for the node only.
        groups = clean(disk, job, self._pace)
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

    def _check(self, root: str, job: SegmentJob) -> None:
        """Check one segment and report the result; a failed check does not end the worker."""
        self._pace.bytes_per_second = job.bytes_per_second
        disk = RealDisk(root)
        disk.full = True
        try:
            report = check_segment(disk, job, self._pace)
        except OSError as error:
            self._write(("os", error.errno, error.strerror, error.filename))
        else:
            self._write(("checked", report))

    def _report(self, size: int) -> None:
        """Report bytes read or written, and wait until the node allows more."""
        self._write(("used", size))
        if self._read() != ("more",):
            raise Closed

    def _lock(self, path: str) -> int:
        """Lock a directory until this process exits; return the descriptor.

        Return -1 if directories cannot be locked; then only the node's own order of passes protects
        it.
        """
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
        """Wait until the group is in place; return the active producers if new ones were sent."""
        match self._read():
            case ("next",):
                return None
            case ("next", Mapping() as active_producers):
                return active_producers
            case other:
                raise ValueError(f"unexpected request: {other!r}")

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
        """Wait; return True as soon as stdin has input or ends."""
        return bool(select.select([self._requests], [], [], delay_s)[0])


def lower_priority() -> None:
    """Give other processes precedence for the CPU, if the system supports that."""
    with suppress(AttributeError, OSError):
        os.nice(NICENESS)
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Serve the node over stdin and stdout; any other output goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lower_priority()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    Worker(0, answers).run()


if __name__ == "__main__":
    main()
