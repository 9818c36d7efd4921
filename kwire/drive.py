"""Runs a state machine under trio, one writer's turn at a time.

An event is stepped the moment it is fed, so whoever feeds it can see at once what became of it;
what is to be done about it waits for the turn.  A turn takes the effects of all events fed since
the last one and performs them together: that is what lets one fsync serve them all.  Nothing of
an effect is visible outside before its turn, so the order of events is the order of effects.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, Protocol, TypeVar

import trio

from kwire.clock import Clock

E = TypeVar("E")
F = TypeVar("F")
E_contra = TypeVar("E_contra", contravariant=True)
F_co = TypeVar("F_co", covariant=True)


class Machine(Protocol[E_contra, F_co]):
    """A machine without input and output.

    ``None`` is the event "your deadline has passed"; stepping it must move ``deadline`` past
    ``now``, or the machine is stepped for ever.
    """

    @property
    def deadline(self) -> float: ...

    def step(self, event: E_contra | None, now: float, now_ms: int) -> tuple[F_co, ...]: ...


class Driver(Generic[E, F]):
    """One machine with its pending effects.  Asleep while there is nothing to do."""

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
        self._news = trio.Event()

    @property
    def backlog(self) -> int:
        """Effects that wait for their turn."""
        return len(self._pending)

    def feed(self, event: E) -> tuple[F, ...]:
        """Step the machine; its effects, which are performed in the next turn."""
        effects = self._machine.step(event, self._clock.now(), self._clock.now_ms())
        self._pending += effects
        self._news.set()
        return effects

    async def run(self) -> None:
        """Perform turns until cancelled; an exception of ``perform`` ends it."""
        while True:
            if not self._pending:
                await self._sleep()
            if self._clock.now() >= self._machine.deadline:
                self._pending += self._machine.step(None, self._clock.now(), self._clock.now_ms())
            turn, self._pending = self._pending, []
            if turn:
                await self._perform(turn)

    async def _sleep(self) -> None:
        """Until an event is fed or the deadline passes, which a fed event may move."""
        self._news = trio.Event()
        deadline = self._machine.deadline
        if deadline == inf:
            await self._news.wait()
            return
        wait = max(deadline - self._clock.now(), 0.0)
        with trio.move_on_after(wait):
            await self._news.wait()
