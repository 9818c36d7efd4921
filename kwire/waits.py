"""Waits of tasks for each other: a signal that can be cleared, waits for an offset, deadlines.

A function whose result seldom has to be awaited is synchronous, and returns a :class:`Slow` if it
has to be, so that the other calls do not pay for a coroutine. A :class:`Parked` result needs no
task at all until its :class:`TimedWait` is over.

Nothing polls: a task sleeps until another task calls ``set``, ``notify`` or ``reach``. For
something that happens once, such as the end of a flush, :class:`trio.Event` is enough; tasks that
take turns, as in ``net/task_pacer.py``, use trio's ParkingLot.
"""

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from functools import partial
from math import inf
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs
import trio

from kwire.lazy_heap import LazyHeap

_ENDED_AT_ONCE: Final = 500
"""The number of waits whose deadlines have passed that end before other tasks run."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@attrs.define(eq=False, repr=False)
class Slow(Generic[T_co]):
    """A result that has to be awaited, of a function whose results usually do not.

    The caller awaits :attr:`finish` at once, before any other task runs.
    """

    finish: Callable[[], Awaitable[T_co]]
    """Continues the work and returns the result."""


class TimedWait:
    """A wait that ends at its deadline, or earlier by :meth:`set`; it does not need a task.

    Either :meth:`park` sets a function that is called at the end, or a task awaits :meth:`wait`.
    """

    __slots__ = ("_deadline", "_deadlines", "_on_over", "is_first", "is_over", "is_parked")

    def __init__(self, deadlines: "Deadlines", *, is_first: bool = False) -> None:
        self._deadlines = deadlines
        self._deadline = inf
        self._on_over: Callable[[], object] | None = None
        self.is_first = is_first
        """True if, among waits that end together, this one is served first."""
        self.is_over = False
        self.is_parked = False
        """True if the end calls a function instead of waking a task."""

    def begin(self, deadline: float) -> None:
        """Set the deadline, before the wait is parked or awaited."""
        self._deadline = deadline

    def park(self, on_over: Callable[[], object]) -> bool:
        """Have ``on_over`` called at the end, and return True.

        Return False if a task has to wait instead: the wait is over, or the deadlines are not
        running.
        """
        if self.is_over or not self._deadlines.is_running:
            return False
        self._deadlines.add(self, self._deadline)
        self._on_over, self.is_parked = on_over, True
        return True

    def set(self) -> None:
        """End the wait."""
        on_over, self._on_over = self._on_over, None
        self.is_over = True
        if on_over is not None:
            on_over()

    async def wait(self) -> None:
        """Wait until the wait is over; a parked wait continues in this task."""
        self.is_parked = False
        if self.is_over:
            return
        event = trio.Event()
        self._on_over = event.set
        if self._deadlines.is_running:
            self._deadlines.add(self, self._deadline)
            await event.wait()
            return
        with trio.move_on_at(self._deadline):
            await event.wait()

    def end(self) -> None:
        """Discard the wait: it is over, or nobody is waiting any longer."""
        self._on_over, self.is_over = None, True
        self._deadlines.discard(self)


class Parked(Slow[T_co]):
    """A result that can be computed once a wait is over; until then it needs no task.

    Either the caller parks the wait and then calls :meth:`resume`, or it awaits :meth:`finish`.
    Thousands of fetches may wait, so a parked result holds no functions that it can do without.
    """

    __slots__ = ("wait",)
    resume: "Callable[[], Slow[T_co] | T_co]"
    """Continues the work after the wait; returns the result, or another wait."""

    def __init__(self, wait: TimedWait) -> None:
        self.wait = wait

    def cancel(self) -> None:
        """End the work without a result."""
        raise NotImplementedError

    async def finish(self) -> T_co:
        """Wait in this task and return the result."""
        try:
            await self.wait.wait()
        except BaseException:
            self.cancel()
            raise
        result = self.resume()
        while isinstance(result, Slow):
            result = await result.finish()
        return result

    def then(self, resume: "Callable[[], Slow[T] | T]") -> "Parked[T]":
        """Return a parked result with the same wait, which continues with ``resume``."""
        return _Continued(self, resume)


class _Continued(Parked[T_co]):
    """A parked result that continues with a function."""

    __slots__ = ("_parked", "resume")

    def __init__(self, parked: "Parked[object]", resume: "Callable[[], Slow[T_co] | T_co]") -> None:
        super().__init__(parked.wait)
        self._parked = parked
        self.resume = resume

    def cancel(self) -> None:
        self._parked.cancel()


# Any: the results of the different waits, which the generator sends itself.
_Waited: TypeAlias = Any
_Call: TypeAlias = Callable[[], Awaitable[_Waited]]
Steps: TypeAlias = Generator[_Call | TimedWait, _Waited, T]
"""Work as a generator. It yields a function whose result it has to await, and is sent that result;
or it yields a wait that does not need a task.
"""


class _ParkedSteps(Parked[T_co]):
    """A generator that continues after the wait that it has yielded."""

    __slots__ = ("_steps",)

    def __init__(self, wait: TimedWait, steps: Steps[T_co]) -> None:
        super().__init__(wait)
        self._steps = steps

    def resume(self) -> Slow[T_co] | T_co:
        return run_until_wait(self._steps)

    def cancel(self) -> None:
        self._steps.close()


def run_until_wait(steps: Steps[T]) -> T | Slow[T]:
    """Run work that seldom waits; return its result, or a wait that leads to the result."""
    try:
        call = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    if isinstance(call, TimedWait):
        return _ParkedSteps(call, steps)
    return Slow(partial(_run_on, steps, call))


async def _run_on(steps: Steps[T], call: _Call | TimedWait) -> T:
    """Run the rest of work that first has to await ``call``."""
    try:
        while True:
            try:
                waited = await (call.wait() if isinstance(call, TimedWait) else call())
            except BaseException as error:  # noqa: BLE001  The work handles it.
                call = steps.throw(error)
            else:
                call = steps.send(waited)
    except StopIteration as end:
        result: T = end.value
        return result


class Signal:
    """An event that can be cleared, or that wakes only the tasks that are already waiting.

    Use :meth:`notify` for a task that checks for work before it waits: no other task runs between
    the check and the wait, so nothing is missed. If a task waits without checking, use :meth:`set`:
    the signal stays set until the task calls :meth:`clear`.
    """

    __slots__ = ("_is_set", "_tasks")

    def __init__(self) -> None:
        self._is_set = False
        self._tasks = trio.lowlevel.ParkingLot()

    def set(self) -> None:
        """Wake the waiting tasks, and let later waits return at once until :meth:`clear`."""
        self._is_set = True
        self._tasks.unpark_all()

    def clear(self) -> None:
        """Let later waits block again."""
        self._is_set = False

    def notify(self) -> None:
        """Wake the tasks that are waiting now; later waits block."""
        self._tasks.unpark_all()

    async def wait(self) -> None:
        """Wait until the signal is set, or for the next :meth:`notify`."""
        if self._is_set:
            await trio.lowlevel.checkpoint()
        else:
            await self._tasks.park()


class Wakeable(Hashable, Protocol):
    """A wait that :meth:`set` ends, such as an event on which a task sleeps."""

    def set(self) -> object: ...


def _set_all(waits: Iterable[Wakeable]) -> None:
    for wait in waits:
        wait.set()


class Deadlines:
    """The deadlines of waits, kept by one task: a cancel scope for each wait costs ten times as
    much."""

    __slots__ = ("_next", "_now", "_waits", "_wake", "is_running")

    def __init__(
        self,
        now: Callable[[], float],
        wake: Callable[[Iterable[Wakeable]], None] = _set_all,
    ) -> None:
        """``now`` is the clock of trio's deadlines; ``wake`` ends waits, at once or later."""
        self._now = now
        self._wake = wake
        self._waits: LazyHeap[Wakeable] = LazyHeap()
        """The waits by their deadlines."""
        self._next = trio.CancelScope()
        """The scope in which :meth:`run` sleeps until the earliest deadline."""
        self.is_running = False
        """True while :meth:`run` is running."""

    def add(self, wait: Wakeable, deadline: float) -> None:
        """End ``wait`` at its deadline; allowed only while :meth:`run` runs."""
        self._waits.push(wait, deadline)
        if deadline < self._next.deadline:
            self._next.deadline = deadline

    def discard(self, wait: Wakeable) -> None:
        """Forget a wait."""
        self._waits.discard(wait)

    async def wait(self, event: trio.Event, deadline: float) -> None:
        """Wait for an event, but not beyond the deadline; the caller checks the outcome.

        No other task may wait for the event, because it may be set at the deadline.
        """
        if not self.is_running:
            with trio.move_on_at(deadline):
                await event.wait()
            return
        self.add(event, deadline)
        try:
            await event.wait()
        finally:
            self.discard(event)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End waits whose time is up, and all of them when cancelled; sleep in between.

        While this is not running, each wait has its own cancel scope.
        """
        self.is_running = True
        task_status.started()
        try:
            while True:
                with trio.CancelScope(deadline=self._waits.first_key) as self._next:
                    await trio.sleep_forever()
                while over := self._waits.pop_up_to(self._now(), _ENDED_AT_ONCE):
                    self._wake(over)
                    await trio.lowlevel.checkpoint()
        finally:
            self.is_running = False
            self._wake(self._waits.pop_up_to(inf))


@attrs.define(eq=False, repr=False)
class OffsetWaits:
    """Tasks that each wait until an offset, which only increases, reaches a certain value."""

    _events: LazyHeap[trio.Event] | None = None
    """The waits that have not ended, by their offsets; None before the first, because each
    partition has three of these objects and most of them are never used."""

    def __len__(self) -> int:
        return 0 if self._events is None else len(self._events)

    async def wait(self, offset: int) -> None:
        """Wait until :meth:`reach` is called for at least ``offset``, or until :meth:`end_all`.

        The caller must have checked that the offset is not reached; where :meth:`end_all` is used,
        it must check once more after the wait.
        """
        event, events = trio.Event(), self._used_events()
        events.push(event, offset)
        try:
            await event.wait()
        finally:
            events.discard(event)

    async def wait_until(self, offset: int, deadlines: Deadlines, deadline: float) -> bool:
        """Wait like :meth:`wait`, but not beyond the deadline; return whether it ended earlier."""
        event, events = trio.Event(), self._used_events()
        events.push(event, offset)
        try:
            await deadlines.wait(event, deadline)
            return event not in events
        finally:
            events.discard(event)

    def _used_events(self) -> LazyHeap[trio.Event]:
        if self._events is None:
            self._events = LazyHeap()
        return self._events

    def reach(self, offset: float) -> None:
        """Wake the tasks that wait for this offset or an earlier one."""
        if self._events is not None:
            for event in self._events.pop_up_to(offset):
                event.set()

    def end_all(self) -> None:
        """Wake all tasks, because the offset that they wait for may never be reached."""
        self.reach(inf)
