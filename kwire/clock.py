"""The only module that reads a clock.

``now`` is monotonic seconds on trio's clock (so a test's clock moves it), ``now_ms`` is
wall-clock milliseconds, which may jump.
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

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
