"""A wall clock for tests that follows trio's, so that a test's clock moves both."""

import trio

from tests.support.log.batches import TIME_MS


class Clock:
    """trio's clock, and wall time that follows it."""

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return TIME_MS + round(trio.current_time() * 1000)
