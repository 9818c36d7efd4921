"""Patience with unavailable brokers, stores and catalogs: whether to retry, and when.

Rules of this file: decisions take the time as an argument; only `patiently` takes a clock and a
sleep function.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from kwire_pipeline.errors import Failure

T = TypeVar("T")
POLL_S: Final = 1
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


def patiently(
    ask: Callable[[], T],
    patience_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Query the brokers again while they fail; raise their Failure when patience runs out."""
    end = clock() + patience_s
    while True:
        try:
            return ask()
        except Failure:
            if clock() >= end:
                raise
        sleep(POLL_S)


@attrs.define
class Outage:
    """A period in which a query keeps failing, and its length so far.

    Only a batch, or a look for records that finds none, ends an outage. An attempt that fails late
    does not: Spark's clients try for minutes themselves before they give up.
    """

    patience_s: float
    _began_s: float | None = None
    _failures: int = 0

    @property
    def is_under_way(self) -> bool:
        return self._began_s is not None

    @property
    def is_first_failure(self) -> bool:
        return self._failures == 1

    def on_failure(self, now_s: float) -> float | None:
        """Return how long to wait before the query starts again; None if the patience is over."""
        if self._began_s is None:
            self._began_s = now_s
        left_s = self._began_s + self.patience_s - now_s
        if left_s <= 0:
            return None
        self._failures += 1
        return min(FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10), LONGEST_WAIT_S, left_s)

    def on_success(self, now_s: float) -> float | None:
        """Return how long the outage lasted that has ended now; None if there was none."""
        if self._began_s is None:
            return None
        elapsed_s = now_s - self._began_s
        self._began_s, self._failures = None, 0
        return elapsed_s
