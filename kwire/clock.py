"""The clock of a node: what every part of it takes for the time.

``now`` is monotonic seconds on trio's clock, because its results become deadlines of trio's tasks;
``now_ms`` is wall-clock milliseconds, which may jump.  A test that moves the time gives a node
another clock and runs trio on the same one (:class:`kwire.testing.clock.MockTime`).

Beside this module only stopwatches read a clock: the durations of disk calls (``log/disk.py``),
slices of the loop (:class:`kwire.drive.Slices`) and the age of the process (``node/process.py``).
"""

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """The source of the time that services pass to their state machines."""

    def now(self) -> float: ...

    def now_ms(self) -> int: ...


class SystemClock:
    """The clocks of this computer."""

    now = staticmethod(trio.current_time)
    """Monotonic seconds; the same function, as requests read the time several times."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
