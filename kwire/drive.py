"""Runs a state machine under trio, one writer's turn at a time.

An event is stepped as soon as it is fed, so the caller sees its effects immediately; performing the
effects waits for the next turn. A turn takes the effects of all events fed since the last turn and
performs them together, so that one fsync serves all of them. No effect is visible outside before
its turn, so the order of events is the order of effects.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from math import inf
from typing import Final, Generic, Protocol, TypeVar

import trio

from kwire.clock import Clock
from kwire.waits import Signal, Wakeable

SLICE_SECONDS: Final = 0.002
"""The longest time for which work that consists of many small items may block the loop."""
STEPS_AT_ONCE: Final = 16
"""The number of steps of a generator between two readings of the clock."""
CALLS_AT_ONCE: Final = 16
"""The number of concurrent calls that begin before other tasks run."""
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")
E_contra = TypeVar("E_contra", contravariant=True)
F_co = TypeVar("F_co", covariant=True)


class Machine(Protocol[E_contra, F_co]):
    """A state machine that does no I/O.

    The event ``None`` means "your deadline has passed"; stepping it must move ``deadline`` past
    ``now``, or the machine is stepped forever.
    """

    @property
    def deadline(self) -> float: ...

    def step(self, event: E_contra | None, now: float, now_ms: int) -> tuple[F_co, ...]: ...


class Driver(Generic[E, F]):
    """A machine with its pending effects. It sleeps while there is nothing to do."""

    def __init__(
        self,
        machine: Machine[E, F],
        perform: Callable[[list[F]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._perform = perform
        self._clock = clock
        self._pending: list[F] = []
        self._fed = Signal()

    def feed(self, event: E) -> tuple[F, ...]:
        """Step the machine; return its effects, which are performed in the next turn."""
        effects = self._machine.step(event, self._clock.now(), self._clock.now_ms())
        self._pending += effects
        self._fed.notify()
        return effects

    async def run(self) -> None:
        """Perform turns until cancelled, or until ``perform`` raises an exception."""
        while True:
            if not self._pending:
                await self._sleep()
            if self._clock.now() >= self._machine.deadline:
                self._pending += self._machine.step(None, self._clock.now(), self._clock.now_ms())
            turn, self._pending = self._pending, []
            if turn:
                await self._perform(turn)

    async def _sleep(self) -> None:
        """Sleep until an event is fed (which may move the deadline) or the deadline passes."""
        deadline = self._machine.deadline
        if deadline == inf:
            await self._fed.wait()
            return
        wait = max(deadline - self._clock.now(), 0.0)
        with trio.move_on_after(wait):
            await self._fed.wait()


async def give_way() -> None:
    """Let other tasks run between pieces of work that each take about a slice."""
    await trio.lowlevel.checkpoint()


async def run_together(calls: Sequence[Callable[[], Awaitable[R]]]) -> list[R]:
    """Await these calls concurrently; return their results in the order of the calls.

    Only a few of them begin before other tasks run: trio looks for I/O only once every task that
    was ready has had its turn.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, R] = {}

    async def run(number: int, call: Callable[[], Awaitable[R]]) -> None:
        results[number] = await call()

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            if number and not number % CALLS_AT_ONCE:
                await give_way()
            nursery.start_soon(run, number, call)
    return [results[number] for number in range(len(calls))]


async def run_within(seconds: float, call: Callable[[], Awaitable[R]], too_late: Exception) -> R:
    """Return the result of a call; if it takes too long, cancel it and raise ``too_late``."""
    with trio.move_on_after(seconds):
        return await call()
    raise too_late


async def wait_seconds(seconds: float) -> None:
    """Wait before retrying a request."""
    await trio.sleep(seconds)


class Slices:
    """Gives other tasks a turn during long work, after each slice of time.

    Create one when the work starts and await :meth:`pause` after each item. It costs one reading of
    the clock per item, and a checkpoint only at the end of a slice. The state that the work
    iterates over may change during a pause.
    """

    __slots__ = ("_end", "_now", "_seconds")

    def __init__(
        self, now: Callable[[], float] = trio.current_time, seconds: float = SLICE_SECONDS
    ) -> None:
        self._now = now
        self._seconds = seconds
        self._end = now() + seconds

    @property
    def is_over(self) -> bool:
        """True if the slice is used up, so that :meth:`pause` would let other tasks run."""
        return self._now() >= self._end

    async def pause(self) -> None:
        """Let other tasks run if the slice is used up. Only then can the task be cancelled."""
        if self._now() >= self._end:
            await trio.lowlevel.checkpoint()
            self._end = self._now() + self._seconds


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run a generator of many small steps, with a pause after each slice; return its value.

    It starts with a pause, because the task may already have used up a slice before.
    """
    await trio.lowlevel.checkpoint()
    slices = Slices()
    while True:
        try:
            for _ in range(STEPS_AT_ONCE):
                next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await slices.pause()


def run_steps(steps: Generator[None, None, T]) -> T:
    """Run a generator of steps without pauses; return its value."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_by_size(steps: Generator[None, None, T], size: int, at_once: int) -> T:
    """Run steps without pauses if ``size`` is at most ``at_once``, else in slices.

    Return their value.
    """
    return run_steps(steps) if size <= at_once else await run_in_slices(steps)


class Wakes:
    """Wakes tasks, at most ``a_turn`` of them in each turn of the loop.

    Trio runs all woken tasks before it polls sockets again, so waking a thousand tasks together
    would make all other clients wait. Tasks are woken in the order of their events.
    """

    __slots__ = ("_a_turn", "_events", "_is_running", "_more")

    def __init__(self, a_turn: int) -> None:
        self._a_turn = a_turn
        self._events: deque[Wakeable] = deque()
        self._more = Signal()
        self._is_running = False

    def wake(self, events: Iterable[Wakeable]) -> None:
        """Set these events: at once if they are few or :meth:`run` is not running."""
        waiting = self._events
        waiting.extend(events)
        if len(waiting) > self._a_turn and self._is_running:
            self._more.notify()
        else:
            self._wake(len(waiting))

    def _wake(self, count: int) -> None:
        for _ in range(count):
            self._events.popleft().set()

    async def run(self) -> None:
        """Wake tasks until cancelled; then wake all remaining tasks."""
        self._is_running = True
        try:
            while True:
                if not self._events:
                    await self._more.wait()
                self._wake(min(self._a_turn, len(self._events)))
                await trio.lowlevel.checkpoint()
        finally:
            self._is_running = False
            self._wake(len(self._events))
