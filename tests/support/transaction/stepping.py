"""A trio run that advances only while a synchronous test calls it, as state machines do.

The run is a guest of the test: its clock jumps to the next deadline when all tasks wait, and
nothing happens between two calls.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import attrs
import outcome
import trio
import trio.testing

T = TypeVar("T")


@attrs.define(eq=False)
class Task(Generic[T]):
    """A task of the run, and its result once it has ended."""

    result: outcome.Outcome[T] | None = None


@attrs.define(eq=False)
class SteppedRun:
    """One trio run with a nursery for the test's tasks."""

    nursery: trio.Nursery = attrs.field(init=False)
    _ticks: deque[Callable[[], object]] = attrs.field(factory=deque, init=False)
    _end: outcome.Outcome[None] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        opened: list[trio.Nursery] = []

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                opened.append(nursery)
                await trio.sleep_forever()

        def on_end(end: outcome.Outcome[None]) -> None:
            self._end = end

        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=self._ticks.append,
            done_callback=on_end,
            clock=trio.testing.MockClock(autojump_threshold=0.0),
        )
        self._advance(lambda: bool(opened))
        (self.nursery,) = opened

    def start(self, call: Callable[[], Awaitable[T]]) -> Task[T]:
        """Start a task; it runs during the next calls."""
        task: Task[T] = Task()

        async def run() -> None:
            try:
                task.result = outcome.Value(await call())
            except Exception as error:  # noqa: BLE001  The test looks at it.
                task.result = outcome.Error(error)

        self.nursery.start_soon(run)
        return task

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Advance the run until a call has ended; return its result."""
        task = self.start(call)
        self._advance(lambda: task.result is not None)
        assert task.result is not None
        return task.result.unwrap()

    def settle(self) -> None:
        """Advance the run until all tasks wait; no time passes."""
        self.call(lambda: trio.testing.wait_all_tasks_blocked(0.0))

    def sleep(self, seconds: float) -> None:
        """Advance the run by a time; everything due meanwhile happens in its order."""

        async def sleep() -> None:
            await trio.sleep(seconds)

        self.call(sleep)

    def close(self) -> None:
        if self._end is None:
            self.nursery.cancel_scope.cancel()
            self._advance(lambda: self._end is not None)

    def _advance(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._end is not None:
                self._end.unwrap()
                raise AssertionError("the run has ended")
            self._ticks.popleft()()
