"""A meter of turns: how much Python a task of the event loop runs between two checkpoints.

A turn is what a task does from the moment trio resumes it until it yields to trio again; nothing
else happens in the process meanwhile. The meter counts the turn's work in events of the tracer
(calls, returns and lines, each line again in each round of a loop), so that a count is the same in
every run, on every machine, however busy it is. Time passes on the meter's clock with the work that
it counts: slices of work end after as many lines as take their time (:class:`kwire.drive.Slices`),
and what sleeps or has a deadline keeps its pace.

What the tracer does not see is charged or left out:

- A call of the disk that changes names or waits for the platter is charged the time in
  :data:`DISK_CALLS_MS`; other system calls count as the lines around them.
- A call of a function in C counts as its line, however long it takes: ``list``, ``dict`` or
  ``join`` of 100,000 elements take 1 to 2 ms.
- What a thread does is not counted: the meter makes the call in the thread's place, unmetered.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple
from unittest.mock import patch

import attrs
import trio
from trio.testing import MockClock

from kwire.log.disk import RealDisk
from simulation.disk import SimDisk
from tests.support.turns.tracer import make_tracer

UNITS_A_MS: Final = 20_000
"""The units that a millisecond of CPU time runs.

Measured with CPython 3.11 in CPU time (``time.thread_time``), untraced, over the rows of the table:
30,000 to 45,000 in loops of a few lines (producers of a snapshot, batches of a log), 10,000 to
20,000 where each line calls something (handlers, deciders, the codec).
"""
BUDGET_MS: Final = 5
BUDGET: Final = BUDGET_MS * UNITS_A_MS
"""The most work of one turn: 2.5 to 10 ms."""
SAMPLE: Final = 1024
"""Units between two looks at where a turn is: a hundred looks at a turn that is too long."""
DISK_CALLS_MS: Final = {
    "remove": 0.05,
    "remove_tree": 0.2,
    "rename": 0.03,
    "make_directory": 0.03,
    "replace": 0.1,
    "sync": 2.0,
    "sync_directory": 2.0,
}
"""The time that the calls take on a local disk that is not busy."""

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")
Place: TypeAlias = tuple[tuple[CodeType, int], ...]
"""The innermost functions of kwire with their lines."""


@cache
def _name_of(code: CodeType) -> str:
    """Return the module of a function of kwire, and an empty text for another function."""
    return code.co_filename.partition("/kwire/")[2]


def _describe(place: Place) -> str:
    return " < ".join(f"{_name_of(code)}:{line} {code.co_qualname}" for code, line in place)


@attrs.define
class Turn:
    """One turn: its work, its task, and the lines where it was seen most often."""

    units: int = 0
    task: str = ""
    places: Counter[Place] = attrs.field(factory=Counter)

    def __str__(self) -> str:
        total = sum(self.places.values()) or 1
        shares = "\n".join(
            f"  {100 * count // total:3d} %  {_describe(place)}"
            for place, count in self.places.most_common(5)
        )
        ms = self.units / UNITS_A_MS
        return f"{self.units:,} units, about {ms:.1f} ms, in {self.task}\n{shares}"


class TurnMeter(trio.abc.Instrument):
    """Counts the work of every turn while :meth:`measuring`; give it to :func:`run_metered`."""

    def __init__(self) -> None:
        self.longest = Turn()
        self.total = 0
        """The units of all turns that were measured."""
        self.turn_count = 0
        self.clock = MockClock(rate=1.0, autojump_threshold=0)
        self._is_on = False
        self._begin = 0
        self._places: Counter[Place] = Counter()
        tracer = self._tracer = make_tracer(self._sample)
        self._trace: object = tracer
        # The clock reads a counter that rests outside of turns.
        self.clock._real_clock = lambda: tracer.units / (1000 * UNITS_A_MS)
        self.clock._real_base = 0.0

    def _sample(self, frame: FrameType | None) -> None:
        self._tracer.next_sample = self._tracer.units + SAMPLE
        path: list[tuple[CodeType, int]] = []
        while frame is not None and len(path) < 4:
            if _name_of(frame.f_code):
                path.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._places[tuple(path)] += 1

    # -- what a test uses

    def reset(self) -> None:
        """Forget what was measured."""
        self.longest, self.total, self.turn_count = Turn(), 0, 0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count what all tasks do; leave and enter the block right after a checkpoint."""
        self._is_on = True
        self._start(trio.lowlevel.current_task())
        try:
            yield
        finally:
            self.after_task_step(trio.lowlevel.current_task())
            self._is_on = False

    def charge(self, ms: float) -> None:
        """Add the time of a call that the tracer does not see."""
        if sys.gettrace() is self._trace:
            self._tracer.units += int(ms * UNITS_A_MS)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what is done here: it is another thread's work."""
        is_counting = sys.gettrace() is self._trace
        if is_counting:
            self._tracer.stop()
        try:
            yield
        finally:
            if is_counting:
                self._tracer.start()

    async def in_thread(
        self, work: Callable[[*Arguments], R], *arguments: *Arguments, **_: object
    ) -> R:
        """Make a call in place of a thread, unmetered, after other tasks had a turn."""
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        with self.aside():
            return work(*arguments)

    # -- trio.abc.Instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_on:
            self._start(task)

    def _start(self, task: trio.lowlevel.Task) -> None:
        self._begin = self._tracer.units
        self._tracer.next_sample = self._tracer.units + SAMPLE
        self._places.clear()
        self._tracer.start()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if sys.gettrace() is self._trace:
            self._tracer.stop()
        if self._is_on:
            units = self._tracer.units - self._begin
            self._begin = self._tracer.units
            self.total += units
            self.turn_count += 1
            if units > self.longest.units:
                self.longest = Turn(units, task.name, self._places.copy())


def _charge_for(meter: TurnMeter, call: Callable[..., R], ms: float) -> Callable[..., R]:
    def charge(*arguments: object, **more: object) -> R:
        meter.charge(ms)
        return call(*arguments, **more)

    return charge


@contextmanager
def _patch_calls(meter: TurnMeter) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(trio.to_thread, "run_sync", meter.in_thread))
        for disk in (RealDisk, SimDisk):
            for name, ms in DISK_CALLS_MS.items():
                if hasattr(disk, name):
                    call = _charge_for(meter, getattr(disk, name), ms)
                    stack.enter_context(patch.object(disk, name, call))
        yield


def run_metered(
    function: Callable[[TurnMeter, *Arguments], Any], *arguments: *Arguments
) -> TurnMeter:
    """Run an async function with a new meter, on the meter's clock, and return the meter."""
    meter = TurnMeter()
    with _patch_calls(meter):
        trio.run(function, meter, *arguments, clock=meter.clock, instruments=[meter])
    return meter
