"""Waits of one task for another: a signal that can be cleared, waits for an offset, deadlines.

A function whose result seldom has to be awaited is synchronous and returns a :class:`Slow` if it
has to be; so nothing else pays for a coroutine.

Nothing polls: a task sleeps until another task calls ``set``, ``notify`` or ``reach``. For
something that happens once, such as the end of a flush, :class:`trio.Event` is enough; tasks that
take turns, as in ``net/task_pacer.py``, use trio's ParkingLot.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable
from functools import partial
from math import inf
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import trio

from kwire.lazy_heap import LazyHeap

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@attrs.define(eq=False, repr=False)
class Slow(Generic[T_co]):
    """A result that has to be awaited, where most results do not.

    The caller awaits :attr:`finish` at once, before any other task runs.
    """

    finish: Callable[[], Awaitable[T_co]]
    """Continues the work and returns the result."""


# Any: the results of the different waits, which the generator sends itself.
_Waited: TypeAlias = Any
Steps: TypeAlias = Generator[Callable[[], Awaitable[_Waited]], _Waited, T]
"""Work that yields a function wherever it has to await that function's result, which it gets."""


def run_until_wait(steps: Steps[T]) -> T | Slow[T]:
    """Run work that seldom waits; return its result, or what is left to wait for."""
    try:
        call = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return Slow(partial(_run_on, steps, call))


async def _run_on(steps: Steps[T], call: Callable[[], Awaitable[_Waited]]) -> T:
    """Run the rest of work that has to await ``call``."""
    try:
        while True:
            try:
                waited = await call()
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
        """Return once the signal is set, or at the next :meth:`notify`."""
        if self._is_set:
            await trio.lowlevel.checkpoint()
        else:
            await self._tasks.park()


def _set_all(events: Iterable[trio.Event]) -> None:
    for event in events:
        event.set()


class Deadlines:
    """The deadlines of waits, kept by one task: a cancel scope for each wait costs ten times as
    much."""

    __slots__ = ("_events", "_is_running", "_next", "_now", "_wake")

    def __init__(
        self,
        now: Callable[[], float],
        wake: Callable[[Iterable[trio.Event]], None] = _set_all,
    ) -> None:
        """``now`` is the clock of trio's deadlines; ``wake`` sets events, at once or later."""
        self._now = now
        self._wake = wake
        self._events: LazyHeap[trio.Event] = LazyHeap()
        """The events of the waits, by their deadlines."""
        self._next = trio.CancelScope()
        """The scope in which :meth:`run` sleeps until the earliest deadline."""
        self._is_running = False

    async def wait(self, event: trio.Event, deadline: float) -> None:
        """Wait for an event, but not beyond the deadline; the caller checks what it waits for.

        Nobody else may wait for the event, because it may be set at the deadline.
        """
        if not self._is_running:
            with trio.move_on_at(deadline):
                await event.wait()
            return
        self._events.push(event, deadline)
        if deadline < self._next.deadline:
            self._next.deadline = deadline
        try:
            await event.wait()
        finally:
            self._events.discard(event)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End the waits whose time is up, and all when cancelled; sleep in between.

        While this does not run, each wait has a cancel scope of its own.
        """
        self._is_running = True
        task_status.started()
        try:
            while True:
                with trio.CancelScope(deadline=self._events.first_key) as self._next:
                    await trio.sleep_forever()
                self._wake(self._events.pop_up_to(self._now()))
        finally:
            self._is_running = False
            self._wake(self._events.pop_up_to(inf))


@attrs.define(eq=False, repr=False)
class OffsetWaits:
    """The tasks that wait until an offset, which only increases, reaches theirs."""

    _events: LazyHeap[trio.Event] = attrs.field(factory=LazyHeap)
    """The waits that have not ended, by their offsets."""

    def __len__(self) -> int:
        return len(self._events)

    async def wait(self, offset: int) -> None:
        """Return when :meth:`reach` is called for at least ``offset``, or at :meth:`end_all`.

        The caller must have checked that the offset is not reached; where :meth:`end_all` is used,
        it must check once more after the wait.
        """
        event = trio.Event()
        self._events.push(event, offset)
        try:
            await event.wait()
        finally:
            self._events.discard(event)

    async def wait_until(self, offset: int, deadlines: Deadlines, deadline: float) -> bool:
        """Wait like :meth:`wait`, but not beyond the deadline; return whether it ended earlier."""
        event = trio.Event()
        self._events.push(event, offset)
        try:
            await deadlines.wait(event, deadline)
            return event not in self._events
        finally:
            self._events.discard(event)

    def reach(self, offset: int) -> None:
        """Wake the tasks that wait for this offset or an earlier one."""
        for event in self._events.pop_up_to(offset):
            event.set()

    def end_all(self) -> None:
        """Wake all tasks, because the offset that they wait for may never be reached."""
        for event in self._events.pop_up_to(inf):
            event.set()
