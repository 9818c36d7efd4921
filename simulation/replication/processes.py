"""Simulated processes under trio: they can be paused, and threads' work waits for simulated time.

Every task of a process, and every task that those start, carries its :class:`Gate` in its context.
While the gate is shut none of them takes a step, though time goes on and timers fire, as with
SIGSTOP. When the gate is open again they run in the order in which they became ready.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from random import Random
from typing import Final, TypeVar, TypeVarTuple
from unittest.mock import patch

import trio
from trio._core import _run

from kwire import attrs
from simulation.scheduler import deterministic_trio

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")

_make_ready = _run.Runner.reschedule


@attrs.define(eq=False)
class Gate:
    """The gate of one process."""

    is_shut: bool = False
    has_ended: bool = False
    _waiting: list[tuple[_run.Runner, _run.Task]] = attrs.field(factory=list)
    """The tasks that are ready to run and may not."""

    def shut(self) -> None:
        """Pause the process."""
        self.is_shut = True

    def open(self) -> None:
        """Let the process go on."""
        self.is_shut = False
        for runner, task in self._waiting:
            runner.runq.append(task)
        self._waiting.clear()

    def end(self) -> None:
        """Let the process go on to its end: threads do nothing more."""
        self.has_ended = True
        self.open()

    def add(self, runner: _run.Runner, task: _run.Task) -> None:
        self._waiting.append((runner, task))


_GATE: Final[ContextVar[Gate | None]] = ContextVar("gate", default=None)


def start_behind(gate: Gate, nursery: trio.Nursery, function: Callable[..., object]) -> None:
    """Start a task, and with it all tasks that it starts, behind a gate."""
    context = copy_context()
    context.run(_GATE.set, gate)
    context.run(nursery.start_soon, function)  # type: ignore[arg-type]


def _reschedule(runner: _run.Runner, task: _run.Task, next_send: object = _run._NO_SEND) -> None:
    """Make a task ready to run, unless its process is paused."""
    _make_ready(runner, task, next_send)  # type: ignore[arg-type]
    gate = task.context.get(_GATE)
    if gate is not None and gate.is_shut:
        runner.runq.pop()
        gate.add(runner, task)


@attrs.define(eq=False)
class SimThreads:
    """The threads of all processes: their work is done after a random delay, without a thread."""

    random: Random
    delay_max_s: float = 0.005

    async def run(self, work: Callable[[*Arguments], R], *arguments: *Arguments, **_: object) -> R:
        """Do a thread's work; like a thread it is not cancelled, but ends with its process.

        A caller that the end of its process does not cancel, because it must not be cancelled, gets
        OSError: it would wait for ever.
        """
        with trio.CancelScope(shield=True):
            await trio.sleep(self.delay_max_s * self.random.random())
        gate = _GATE.get()
        if gate is not None and gate.has_ended:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise OSError(errno.EIO, "the process has ended")
        return work(*arguments)


@contextmanager
def simulated_processes(seed: int, threads: SimThreads) -> Iterator[None]:
    """Make the order of tasks follow from a seed, and let gates and simulated threads work."""
    with (
        deterministic_trio(seed),
        patch.object(_run.Runner, "reschedule", _reschedule),
        patch.object(trio.to_thread, "run_sync", threads.run),
    ):
        yield
