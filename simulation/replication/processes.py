"""Simulated processes under trio, which can be paused; thread work takes simulated time.

Every task of a process, and every task that such a task starts, has the process's :class:`Gate` in
its context. While the gate is shut, these tasks do not run, although time passes and timers fire,
as with SIGSTOP. When the gate reopens, they run in the order in which they became ready.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from random import Random
from typing import Final, TypeVar, TypeVarTuple
from unittest.mock import patch

import attrs
import trio
from trio._core import _run

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
    """The tasks that are ready but must not run yet."""

    def shut(self) -> None:
        """Pause the process."""
        self.is_shut = True

    def open(self) -> None:
        """Resume the process."""
        self.is_shut = False
        for runner, task in self._waiting:
            runner.runq.append(task)
        self._waiting.clear()

    def end(self) -> None:
        """Resume the process so that it can end; its threads do nothing more."""
        self.has_ended = True
        self.open()

    def add(self, runner: _run.Runner, task: _run.Task) -> None:
        self._waiting.append((runner, task))


_GATE: Final[ContextVar[Gate | None]] = ContextVar("gate", default=None)


def start_behind(gate: Gate, nursery: trio.Nursery, function: Callable[..., object]) -> None:
    """Start a task behind a gate, together with all tasks that it will start."""
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
    """The threads of all processes, whose work runs without a thread, after a random delay."""

    random: Random
    delay_max_s: float = 0.005

    async def run(self, work: Callable[[*Arguments], R], *arguments: *Arguments, **_: object) -> R:
        """Run a thread's work, which cannot be cancelled but ends with its process.

        The end of the process cancels the caller, or raises OSError in a caller that is shielded
        from cancellation and would otherwise wait forever.
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
    """Let a seed determine the order of tasks, and enable gates and simulated threads."""
    with (
        deterministic_trio(seed),
        patch.object(_run.Runner, "reschedule", _reschedule),
        patch.object(trio.to_thread, "run_sync", threads.run),
    ):
        yield
