"""The clockwork of simulations: a queue of future events, and a trace of past ones.

Same seed, same run: time is the queue's, ties are broken by order of entry, randomness is one
seeded source.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import attrs
from trio._core import _run


class Violation(AssertionError):
    """An invariant does not hold."""


@contextmanager
def deterministic_trio(seed: int) -> Iterator[None]:
    """Make the order of trio's tasks follow from a seed, as Hypothesis does."""
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
        """Run the next event; False when there is none."""
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


@attrs.define
class Trace:
    """The last events of a run, formatted only by :meth:`text`."""

    lines: deque[tuple[Any, ...]]
    digest: int = 0

    @classmethod
    def of(cls, length: int) -> "Trace":
        return cls(deque(maxlen=length))

    def add(self, *columns: Any) -> None:
        self.lines.append(columns)

    def text(self) -> str:
        return "\n".join(_line(columns) for columns in self.lines)


def _line(columns: tuple[Any, ...]) -> str:
    time, node, role, epoch, end, committed, *what = columns
    text = " ".join(map(str, what))
    return f"{time:10.4f}  n{node}  {role:<11} e{epoch:<4} end={end:<6} hw={committed:<6} {text}"
