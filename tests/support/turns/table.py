"""The table of metered operations: what grows, the size it is run at, and what runs it."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, TypeVar

import attrs
import trio

from tests.support.turns.meter import Turn, TurnMeter, run_metered

S = TypeVar("S")


@attrs.frozen(eq=False)
class Operation(Generic[S]):
    """One row: an operation on the subject of its scene."""

    name: str
    grows: str
    """The thing of which there are :attr:`size`."""
    size: int
    run: Callable[[S, int], Awaitable[None]]
    """Prepares the operation, then measures it."""
    covers: tuple[str, ...] = ()
    """The API names, or the tasks of a node, whose work this is."""
    after: str = ""
    """The earlier row that this one needs, if any."""


@attrs.frozen
class Result:
    """The counts of the meter for one operation."""

    operation: Operation[Any]
    longest: Turn
    total: int
    turn_count: int


@attrs.define(eq=False)
class Scene(Generic[S]):
    """Operations that share what is set up for them, which is not measured."""

    name: str
    subject: Callable[[TurnMeter], AbstractAsyncContextManager[S]]
    operations: list[Operation[S]] = attrs.field(factory=list)

    def operation(
        self, name: str, grows: str, size: int, *covers: str, after: str = ""
    ) -> Callable[[Callable[[S, int], Awaitable[None]]], Callable[[S, int], Awaitable[None]]]:
        """Add a row whose function is decorated; see :class:`Operation`."""

        def add(run: Callable[[S, int], Awaitable[None]]) -> Callable[[S, int], Awaitable[None]]:
            self.operations.append(Operation(name, grows, size, run, covers, after))
            return run

        return add

    def measure(self, only: str = "") -> list[Result]:
        """Run the operations one after the other, and return what each of them took.

        With ``only`` those with this text in their names, and before them what they need.
        """
        results: list[Result] = []
        to_run = self._rows_to_run(only)

        async def run_all(meter: TurnMeter) -> None:
            async with self.subject(meter) as subject:
                for operation in self.operations:
                    if operation.name in to_run:
                        result = await _run(operation, subject, meter)
                        if only in operation.name:
                            results.append(result)

        if to_run:
            with _without_collections():
                run_metered(run_all)
        return results

    def _rows_to_run(self, only: str) -> set[str]:
        """Return the names of rows with this text in their names, and of those they need."""
        names = {operation.name for operation in self.operations if only in operation.name}
        for operation in reversed(self.operations):
            if operation.name in names and operation.after:
                names.add(operation.after)
        return names


@contextmanager
def _without_collections() -> Iterator[None]:
    """Have no collections of cycles, which visit all that is set up and take a third of the time.

    They count as nothing, but the finalizers that they call count in whichever turn they run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _run(operation: Operation[S], subject: S, meter: TurnMeter) -> Result:
    meter.reset()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operation.run, subject, operation.size, name=operation.name)
    assert meter.turn_count, f"{operation.name} measures nothing"
    return Result(operation, meter.longest, meter.total, meter.turn_count)
