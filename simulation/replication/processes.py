"""Simulated processes under trio, which can be paused; thread work takes simulated time.

Every task of a process, and every task that such a task starts, has the process's :class:`Gate` in
its context. While the gate is shut, these tasks do not run. When it reopens, they run in the order
in which they became ready: what waits in their sockets arrives before their timers fire, as in
trio, whose loop looks at sockets first. A process can be stopped in two ways:

* paused, as with SIGSTOP: its clock goes on, so the timers that are due by then fire all at once;
* suspended with its machine: its clock stands still, so every timer fires later by that time.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
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
_set_up_runner = _run.setup_runner


def world_time() -> float:
    """Return the time of the world, whichever machine's task asks."""
    return _run.GLOBAL_RUN_CONTEXT.runner.clock.current_time()


@attrs.define(eq=False)
class Gate:
    """The gate of one process, and the monotonic clock of its machine since the process began."""

    is_shut: bool = False
    has_ended: bool = False
    _suspended_at: float = inf
    """The time of the world at which the machine was suspended; infinite while it runs."""
    lost_s: float = 0.0
    """The length of all earlier suspensions."""
    _waiting: list[tuple[_run.Runner, _run.Task]] = attrs.field(factory=list)
    """The tasks that are ready but must not run yet."""

    def now(self) -> float:
        """Return the time on the machine's monotonic clock."""
        return min(world_time(), self._suspended_at) - self.lost_s

    def suspended_s(self) -> float:
        """Return for how long the machine has been suspended since the process began."""
        return self.lost_s + max(0.0, world_time() - self._suspended_at)

    def to_world(self, time: float) -> float:
        """Return when the clock of a running machine reaches ``time``, never too early."""
        world = time + self.lost_s
        return world if world - self.lost_s >= time else nextafter(world, inf)

    def shut(self) -> None:
        """Pause the process."""
        self.is_shut = True

    def suspend(self) -> None:
        """Suspend the machine."""
        self.is_shut, self._suspended_at = True, min(self._suspended_at, world_time())

    def open(self) -> None:
        """Resume the process, whether it was paused or its machine was suspended."""
        if self._suspended_at != inf:
            self.lost_s, self._suspended_at = self.suspended_s(), inf
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


def own_gate() -> Gate | None:
    """Return the gate of the running task's process; None for a task of the world."""
    return _GATE.get()


def _current_time(runner: _run.Runner) -> float:
    """Return the time on the clock of the running task's machine."""
    gate = _GATE.get()
    return runner.clock.current_time() if gate is None else gate.now()


@attrs.define(eq=False)
class MachineDeadlines(_run.Deadlines):
    """The deadlines of all tasks, those of each process by its machine's clock.

    A process that is stopped notices the deadlines that have passed when it resumes.
    """

    _by_gate: dict[Gate | None, _run.Deadlines] = attrs.field(factory=dict)
    _homes: dict[trio.CancelScope, _run.Deadlines] = attrs.field(factory=dict)
    """The process's deadlines to which each registered one belongs."""

    def add(self, deadline: float, cancel_scope: trio.CancelScope) -> None:
        gate = _GATE.get()
        home = self._by_gate.get(gate)
        if home is None:
            home = self._by_gate[gate] = _run.Deadlines()
        self._homes[cancel_scope] = home
        home.add(deadline, cancel_scope)

    def remove(self, deadline: float, cancel_scope: trio.CancelScope) -> None:
        self._homes.pop(cancel_scope).remove(deadline, cancel_scope)

    def next_deadline(self) -> float:
        """Return the time of the world at which the next deadline passes."""
        earliest = inf
        for gate, deadlines in self._by_gate.items():
            if gate is None or not gate.is_shut:
                deadline = deadlines.next_deadline()
                if gate is not None and deadline != inf:
                    deadline = gate.to_world(deadline)
                earliest = min(earliest, deadline)
        return earliest

    def expire(self, now: float) -> bool:
        """Cancel the scopes whose deadlines have passed; return whether there were any."""
        has_expired = False
        for gate, deadlines in list(self._by_gate.items()):
            if gate is None:
                own_now = now
            elif gate.is_shut:
                continue
            else:
                own_now = now - gate.lost_s
            if deadlines._heap and deadlines._heap[0][0] <= own_now:
                has_expired |= deadlines.expire(own_now)
            elif gate is not None and gate.has_ended and deadlines.next_deadline() == inf:
                del self._by_gate[gate]
        return has_expired


def _set_up(
    clock: trio.abc.Clock | None,
    instruments: Sequence[trio.abc.Instrument],
    restrict_keyboard_interrupt_to_checkpoints: bool,
    strict_exception_groups: bool,
) -> _run.Runner:
    """Set up a run of trio whose tasks have the deadlines of their machines."""
    runner = _set_up_runner(
        clock, instruments, restrict_keyboard_interrupt_to_checkpoints, strict_exception_groups
    )
    runner.deadlines = MachineDeadlines()
    return runner


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
        patch.object(_run, "setup_runner", _set_up),
        patch.object(_run.Runner, "current_time", _current_time),
        patch.object(_run.Runner, "reschedule", _reschedule),
        patch.object(trio.to_thread, "run_sync", threads.run),
    ):
        yield
