"""Waits of one task for another: a signal that can be cleared, and waits for an offset.

Nothing polls: a task sleeps until another task calls ``set``, ``notify`` or ``reach``. For
something that happens once, such as the end of a flush, :class:`trio.Event` is enough; tasks that
take turns, as in ``net/task_pacer.py``, use trio's ParkingLot.
"""

from math import inf

import attrs
import trio

from kwire.lazy_heap import LazyHeap


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

    def reach(self, offset: int) -> None:
        """Wake the tasks that wait for this offset or an earlier one."""
        for event in self._events.pop_up_to(offset):
            event.set()

    def end_all(self) -> None:
        """Wake all tasks, because the offset that they wait for may never be reached."""
        for event in self._events.pop_up_to(inf):
            event.set()
