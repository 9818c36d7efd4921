"""A clock that a test can move, for a node in the test's own process.

Give the same object to trio and to the node::

    time = MockTime()
    trio.run(main, clock=time.of_trio)  # main creates make_node(config, this_computer(clock=time))
    time.move(3600)

Rule: libraries that freeze or set the time of a test (freezegun, time-machine) do not reach this
clock. A node whose time stands still would wait for ever, and one whose wall clock is years behind
would reject the records that clients in C stamp. So this module reads only clocks that these
libraries leave alone.
"""

import sys
import time
from typing import Final

from trio.abc import Clock

_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE of Linux, which lags a few milliseconds; Python has no name for it."""
_SECOND_NS: Final = 1_000_000_000


def machine_ms() -> int:
    """Return the wall-clock time of the machine, also while a test has set another one."""
    now = time.clock_gettime_ns(time.CLOCK_REALTIME)
    if sys.platform == "linux":
        coarse = time.clock_gettime_ns(_COARSE)
        if abs(now - coarse) > _SECOND_NS:
            now = coarse
    return now // 1_000_000


class MovableClock(Clock):
    """The clock for trio: seconds since its creation, and those by which it was moved."""

    def __init__(self) -> None:
        self._zero = time.clock_gettime(time.CLOCK_MONOTONIC)

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC) - self._zero

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def jump(self, seconds: float) -> None:
        self._zero -= seconds


class MockTime:
    """Monotonic and wall-clock time that pass normally; a test can move both forward together."""

    def __init__(self, start_ms: int | None = None) -> None:
        """Start the wall clock at ``start_ms``, by default at the machine's time."""
        self.of_trio = MovableClock()
        """The clock for :func:`trio.run`, which all sleeps and time limits of the node use."""
        self._zero_ms = machine_ms() if start_ms is None else start_ms
        self._zero = self.of_trio.current_time()
        self._suspended_s = 0.0

    def now(self) -> float:
        return self.of_trio.current_time()

    def now_ms(self) -> int:
        return self._zero_ms + int((self.now() - self._zero) * 1000)

    def suspended_s(self) -> float:
        return self._suspended_s

    def suspend(self, seconds: float) -> None:
        """Advance the time of the world but not :meth:`now`, as if the machine were suspended."""
        self._suspended_s += seconds
        self._zero_ms += int(seconds * 1000)

    def move(self, seconds: float) -> None:
        """Move the time forward at once; call this in trio's thread, such as from a task."""
        self.of_trio.jump(seconds)
