"""Waits of one task for another: a signal that can be cleared, and waits for an offset.

Nothing polls: a task sleeps until another task calls ``set``, ``notify`` or ``reach``. For
something that happens once, such as the end of a flush, :class:`trio.Event` is enough; tasks that
take turns, as in ``net/task_pacer.py``, use trio's ParkingLot.
"""

import heapq
from typing import Final

import trio

from kwire import attrs

_ENDED_MIN: Final = 16
"""The number of entries of ended waits that never cause a heap to be rebuilt."""


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


@attrs.define(eq=False)
class OffsetWaits:
    """The tasks that wait until an offset, which only increases, reaches theirs."""

    _heap: list[tuple[int, int, trio.Event]] = attrs.field(factory=list)
    """Entries of ended waits stay, at most :data:`_ENDED_MIN` more than other entries."""
    _events: set[trio.Event] = attrs.field(factory=set)
    """The events of the waits that have not ended."""
    _count: int = 0
    """Breaks ties between equal offsets: their tasks are woken in the order of their waits."""

    def __len__(self) -> int:
        return len(self._events)

    async def wait(self, offset: int) -> None:
        """Return when :meth:`reach` is called for at least ``offset``, or at :meth:`end_all`.

        The caller must have checked that the offset is not reached; where :meth:`end_all` is used,
        it must check once more after the wait.
        """
        event = trio.Event()
        self._count += 1
        self._events.add(event)
        heapq.heappush(self._heap, (offset, self._count, event))
        try:
            await event.wait()
        finally:
            if not event.is_set():
                self._drop(event)

    def reach(self, offset: int) -> None:
        """Wake the tasks that wait for this offset or an earlier one."""
        while self._heap and self._heap[0][0] <= offset:
            event = heapq.heappop(self._heap)[2]
            if event in self._events:
                self._events.remove(event)
                event.set()

    def end_all(self) -> None:
        """Wake all tasks, because the offset that they wait for may never be reached."""
        heap, self._heap = self._heap, []
        for _, _, event in heap:
            if event in self._events:
                event.set()
        self._events.clear()

    def _drop(self, event: trio.Event) -> None:
        """Remove a wait that was cancelled, in constant time on average."""
        self._events.discard(event)
        if len(self._heap) > 2 * len(self._events) + _ENDED_MIN:
            self._heap = [entry for entry in self._heap if entry[2] in self._events]
            heapq.heapify(self._heap)
