"""Simulated processes under trio, which can be paused; thread work takes simulated time.

Every task of a process, and every task that such a task starts, has the process's :class:`Gate` in
its context. While the gate is shut, these tasks do not run, although time passes and timers fire,
as with SIGSTOP. When the gate reopens, they run in the order in which they became ready.

While the machine of a process is suspended, the process's clock and timers stop as well. So each
process has its own time, which is behind the world's by the duration of all suspensions, and
``trio.current_time`` returns the time of the process whose task asks.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from math import inf, nextafter
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
_world_time = _run.Runner.current_time


@attrs.define(eq=False)
class Gate:
    """The gate of one process."""

    suspended_s: float = 0.0
    """The seconds for which the machine was suspended, by which its clock is behind the world's."""
    is_shut: bool = False
    has_ended: bool = False
    _waiting: list[tuple[_run.Runner, _run.Task]] = attrs.field(factory=list)
    """The tasks that are ready but must not run yet."""
    _stopped_at: float | None = None
    """The world's time at which the machine was suspended; None while it is not."""
    _timers: list[trio.CancelScope] = attrs.field(factory=list)
    """The timers that the suspension has stopped."""

    def shut(self) -> None:
        """Pause the process."""
        self.is_shut = True

    def suspend(self) -> None:
        """Suspend the machine: pause the process, and stop its clock and its timers."""
        self.is_shut = True
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        self._stopped_at = _world_time(runner)
        timed = [scope for _, _, scope in runner.deadlines._heap if self._has(scope)]
        for scope in timed:
            if scope._registered_deadline != inf:  # Otherwise the entry is out of date.
                self._timers.append(scope)
                _register(runner, scope, inf)

    def _has(self, scope: trio.CancelScope) -> bool:
        """Return whether a scope belongs to this process."""
        tasks = _tasks_below(scope._cancel_status)
        return any(task.context.get(_GATE) is self for task in tasks)

    def _resume_clock(self) -> None:
        """Let the clock and the timers of a suspended machine go on from where they stopped."""
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        assert self._stopped_at is not None
        self.suspended_s += _world_time(runner) - self._stopped_at
        self._stopped_at = None
        for scope in self._timers:
            if scope._cancel_status is not None and not scope._cancel_called:
                _register(runner, scope, _in_world_time(scope._deadline, self.suspended_s))
        self._timers.clear()

    def open(self) -> None:
        """Resume the process, and its machine if that is suspended."""
        if self._stopped_at is not None:
            self._resume_clock()
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


def world_time() -> float:
    """Return the time of the world, whichever process asks."""
    return trio.current_time() + suspended_s()


def suspended_s() -> float:
    """Return the seconds for which the machine of the running task was suspended."""
    gate = _GATE.get()
    return 0.0 if gate is None else gate.suspended_s


def _tasks_below(status: _run.CancelStatus | None) -> Iterator[_run.Task]:
    """Yield the tasks in a cancel scope."""
    if status is not None:
        yield from status._tasks
        for child in status._children:
            yield from _tasks_below(child)


def _in_world_time(deadline: float, suspended_s: float) -> float:
    """Return the world's time of a deadline; at that time the process's deadline has passed."""
    end = deadline + suspended_s
    while end - suspended_s < deadline:  # Otherwise a process that waits for it would not stop.
        end = nextafter(end, inf)
    return end


def _register(runner: _run.Runner, scope: trio.CancelScope, end: float) -> None:
    """Let a timer end at another time, which is the world's."""
    if scope._registered_deadline != inf:
        runner.deadlines.remove(scope._registered_deadline, scope)
    scope._registered_deadline = end
    if end != inf:
        runner.deadlines.add(end, scope)


@contextmanager
def _registered_in_world_time(scope: trio.CancelScope) -> Iterator[None]:
    """Register a deadline after it may have changed, as trio does, but in the world's time."""
    try:
        yield
    finally:
        has_ended = scope._cancel_status is None or scope._cancel_called
        end = inf if has_ended else _in_world_time(scope._deadline, suspended_s())
        if end != scope._registered_deadline:
            _register(_run.GLOBAL_RUN_CONTEXT.runner, scope, end)


def _process_time(runner: _run.Runner) -> float:
    """Return the time of the running task's process."""
    return _world_time(runner) - suspended_s()


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
    scope = _run.CancelScope
    with (
        deterministic_trio(seed),
        patch.object(_run.Runner, "reschedule", _reschedule),
        patch.object(_run.Runner, "current_time", _process_time),
        patch.object(scope, "_might_change_registered_deadline", _registered_in_world_time),
        patch.object(trio.to_thread, "run_sync", threads.run),
    ):
        yield
