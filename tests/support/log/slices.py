"""A clock by which slices end, and a count of the turns of other tasks in between."""

import itertools
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio

from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS
from tests.support.log.threads import at_once

T = TypeVar("T")


def result_of(work: Generator[object, None, T]) -> T:
    """Run work in slices without a pause; return its value."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value


@attrs.define
class BusyClock:
    """A clock that advances each time it is read."""

    step: float = 0.0001
    reads: Iterator[int] = attrs.field(factory=itertools.count)

    def now(self) -> float:
        return trio.current_time() + next(self.reads) * self.step

    def now_ms(self) -> int:
        return TIME_MS + int(trio.current_time() * 1000)


@attrs.define
class Turns:
    """A counter of the turns of another task."""

    count: int = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1


@asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    other_task = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_task.run)
        yield other_task
        nursery.cancel_scope.cancel()


def unopened_manager(disk: SimDisk, step: float = 0.0001) -> LogManager:
    return LogManager([LogDirectory(disk, "dir")], BusyClock(step), threads=DiskThreads(at_once))
