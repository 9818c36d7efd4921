"""The event loop of simulations: a queue of future events, and a trace of past events.

The same seed gives the same run: the queue defines the time, simultaneous events run in the order
in which they were queued, and all randomness comes from one seeded source.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import attrs
from trio._core import _run


class Violation(AssertionError):
    """Raised when an invariant does not hold."""


@contextmanager
def deterministic_trio(seed: int) -> Iterator[None]:
    """Let a seed determine the order of trio's tasks, as Hypothesis does."""
    with (
        patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        patch.object(_run, "_r", Random(seed)),
    ):
        yield


@attrs.define
class Scheduler:
    """The queue of events by simulated time, in seconds."""

    now: float = 0.0
    events: int = 0
    _queue: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list)
    _entered: int = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._entered += 1
        heapq.heappush(self._queue, (max(time, self.now), self._entered, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Run the next event; return False if the queue is empty."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        self.events += 1
        action()
        return True

    def run_until(self, time: float) -> None:
        while self._queue and self._queue[0][0] <= time:
            self.step()
        self.now = time


class TraceLine(NamedTuple):
    """One event of a run, with the state of its node after it."""

    time: float
    node: int
    role: str
    epoch: int
    end_offset: int
    high_watermark: int
    event: object

    def __str__(self) -> str:
        return (
            f"{self.time:10.4f}  n{self.node}  {self.role:<11} e{self.epoch:<4} "
            f"end={self.end_offset:<6} hw={self.high_watermark:<6} {self.event}"
        )


@attrs.define
class Trace:
    """The last events of a run, formatted only by :meth:`text`."""

    lines: deque[TraceLine]

    @classmethod
    def of(cls, length: int) -> "Trace":
        return cls(deque(maxlen=length))

    def add(self, line: TraceLine) -> None:
        self.lines.append(line)

    def text(self) -> str:
        return "\n".join(map(str, self.lines))
