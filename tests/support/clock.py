"""Wall clocks for tests that follow trio's, so that a test's clock moves both."""

import attrs
import trio

from tests.support.log.batches import TIME_MS


class Clock:
    """trio's clock, and wall time that follows it."""

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return TIME_MS + round(trio.current_time() * 1000)


@attrs.define
class JumpingClock:
    """trio's clock, and a wall clock that a test sets forward and back."""

    jump_ms: int = 0

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return TIME_MS + self.jump_ms + int(trio.current_time() * 1000)
