"""Worker threads whose disk calls a test releases one by one.

They replace a service's ``in_thread``: every job runs in its own thread and stops before each call
of a :class:`SteppedDisk`, until :meth:`SteppedThreads.step` releases the call. Only one thread runs
at any moment, so a seed determines the order of all actions of the event loop and the threads.
"""

import errno
import threading
from collections.abc import Callable
from random import Random

import attrs
import trio

from simulation.disk import Killed, SimDisk


@attrs.define(eq=False)
class Worker:
    """One job and its thread."""

    call: Callable[[], None]
    finished: trio.Event = attrs.field(factory=trio.Event)
    error: BaseException | None = None
    is_abandoned: bool = False
    _go: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    _parked: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    _is_done: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> bool:
        """Run the job up to its next disk call; return whether the job is done."""
        self._go.release()
        self._parked.acquire()
        return self._is_done

    def park(self) -> None:
        """Wait, in the job's thread, until the next disk call is released."""
        self._parked.release()
        self._go.acquire()
        if self.is_abandoned:
            raise Killed("the machine is gone")

    def _run(self) -> None:
        _HERE.worker = self
        self._go.acquire()
        try:
            if self.is_abandoned:
                raise Killed("the machine is gone")
            self.call()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            self.error = error
        self._is_done = True
        self._parked.release()


class _Here(threading.local):
    """The worker of the current thread."""

    worker: Worker | None = None


_HERE = _Here()


@attrs.define(eq=False)
class SteppedThreads:
    """The workers of a test."""

    random: Random
    before_step: Callable[[Worker], None] = lambda worker: None
    """Called with a worker before each of its steps."""
    workers: list[Worker] = attrs.Factory(list)
    is_over: bool = False

    async def __call__(self, call: Callable[[], None]) -> None:
        """Make a call in a thread; it cannot be cancelled, as with real threads."""
        if self.is_over:
            raise OSError(errno.EIO, "the machine is gone")
        worker = Worker(call)
        self.workers.append(worker)
        worker.start()
        with trio.CancelScope(shield=True):
            await worker.finished.wait()
        if isinstance(worker.error, Killed):
            raise OSError(errno.EIO, "the machine is gone")
        if worker.error is not None:
            raise worker.error

    def step(self) -> None:
        """Let one worker, chosen at random, make one disk call."""
        if not self.workers:
            return
        worker = self.random.choice(self.workers)
        self.before_step(worker)
        if worker.step():
            self.workers.remove(worker)
            worker.finished.set()

    def abandon(self) -> None:
        """End all threads without another disk call, and start no new ones."""
        self.is_over = True
        for worker in self.workers:
            worker.is_abandoned = True
            while not worker.step():
                pass
            worker.finished.set()
        self.workers.clear()


class SteppedDisk(SimDisk):
    """A disk that stops workers before each call."""

    def call(self, kind: str, path: str) -> None:
        worker = _HERE.worker
        if worker is not None:
            worker.park()
        super().call(kind, path)
