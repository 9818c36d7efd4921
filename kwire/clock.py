"""The clock of a node, from which all its parts take the time.

``now`` is monotonic seconds on trio's clock, because its results become deadlines of trio's tasks;
``now_ms`` is wall-clock milliseconds, which may jump; ``suspended_s`` is the time that ``now``
omits because the machine was suspended. A test that moves the time gives the node another clock and
runs trio on the same one (:class:`kwire.testing.clock.MockTime`).

Besides this module only stopwatches read a clock: for the durations of disk calls
(``log/disk.py``), slices of the loop (:class:`kwire.drive.Slices`) and the age of the process
(``node/pages.py``).
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock that continues while the machine is suspended; only Linux has it under this name."""


class Clock(Protocol):
    """The source of the time that services pass to their state machines."""

    def now(self) -> float: ...

    def now_ms(self) -> int: ...


class NodeClock(Clock, Protocol):
    """The clock of a whole node, which also reports how long the machine was suspended."""

    def suspended_s(self) -> float: ...


def _trio_now() -> Callable[[], float]:
    """Return the function that reads trio's clock.

    Within trio that is the clock's own, because ``trio.current_time`` looks the clock up each time.
    """
    if trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_clock().current_time
    return trio.current_time


class SystemClock:
    """The clocks of this computer; one that is created within trio is for that run only."""

    def __init__(self) -> None:
        self.now = _trio_now()
        """Monotonic seconds; the function itself, without a wrapper, as requests often read the
        time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def suspended_s(self) -> float:
        """Return how long the machine has been suspended since it booted, in seconds; 0 off Linux.

        Two clocks are read one after the other, so the result varies by microseconds.
        """
        if _BOOT_CLOCK is None:
            return 0.0
        return time.clock_gettime(_BOOT_CLOCK) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SteadyWall:
    """A wall clock without jumps: its time at creation plus the monotonic time since then.

    State that expires after hours or days is compared with this clock too, because a wall clock
    that jumps forward would expire state that is in use.
    """

    __slots__ = ("_clock", "_zero_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_ms = clock.now_ms() - clock.now() * 1000

    def now_ms(self) -> float:
        return self.at(self._clock.now())

    def at(self, now: float) -> float:
        """Return this clock's time at the time ``now`` of the monotonic clock."""
        return self._zero_ms + now * 1000
