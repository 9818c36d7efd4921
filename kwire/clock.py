"""The clock of a node: what every part of it takes for the time.

``now`` is monotonic seconds on trio's clock, because its results become deadlines of trio's tasks;
``now_ms`` is wall-clock milliseconds, which may jump; ``suspended_s`` is the time that ``now``
leaves out because the machine stood still.  A test that moves the time gives a node
another clock and runs trio on the same one (:class:`kwire.testing.clock.MockTime`).

Beside this module only stopwatches read a clock: the durations of disk calls (``log/disk.py``),
slices of the loop (:class:`kwire.drive.Slices`) and the age of the process (``node/process.py``).
"""

import time
from typing import Final, Protocol

import trio

_BOOT_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock that goes on while the machine is suspended; Linux alone has it under this name."""


class Clock(Protocol):
    """The source of the time that services pass to their state machines."""

    def now(self) -> float: ...

    def now_ms(self) -> int: ...


class NodeClock(Clock, Protocol):
    """The clock of a whole node, which also notices that the machine was suspended."""

    def suspended_s(self) -> float: ...


class SystemClock:
    """The clocks of this computer."""

    now = staticmethod(trio.current_time)
    """Monotonic seconds; the same function, as requests read the time several times."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def suspended_s(self) -> float:
        """Return the seconds for which the machine was suspended since it booted; 0 off Linux.

        Two clocks are read one after the other, so the result varies by microseconds.
        """
        if _BOOT_CLOCK is None:
            return 0.0
        return time.clock_gettime(_BOOT_CLOCK) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SteadyWall:
    """The wall clock as of its creation, and the monotonic time that has passed since.

    What expires after hours or days is compared with this clock too, because a wall clock that
    jumps forward would expire what is in use.
    """

    __slots__ = ("_clock", "_zero_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_ms = clock.now_ms() - clock.now() * 1000

    def now_ms(self) -> float:
        return self._zero_ms + self._clock.now() * 1000
