"""Decides when a log directory is considered slow, and when it is fast again.

After a single slow write, the directory is slow, because the event loop has waited for the write.
While the kernel throttles writers of dirty pages, slow and fast writes alternate, so one fast write
proves nothing. A directory is fast again after a run of fast writes; the length of the run doubles
each time the directory soon becomes slow again.
"""

from typing import Final

SLOW_WRITE_SECONDS: Final = 0.05
"""A write that takes longer makes its directory slow."""
RUN_MIN: Final = 16
RUN_MAX: Final = 4096
"""The number of consecutive fast writes that end the slow state, initially and at most."""
SOON_SECONDS: Final = 60.0


class Pace:
    """The recent write speed of one directory."""

    def __init__(self) -> None:
        self._run = RUN_MIN
        self._remaining = 0
        self._slow_at = float("-inf")

    def is_slow_after(self, elapsed_s: float, now: float) -> bool:
        """Return whether the directory is slow after a write that took ``elapsed_s``.

        ``now`` is when the write ended.
        """
        if elapsed_s > SLOW_WRITE_SECONDS:
            if not self._remaining:
                relapse = now - self._slow_at < SOON_SECONDS
                self._run = min(2 * self._run, RUN_MAX) if relapse else RUN_MIN
            self._remaining = self._run
            self._slow_at = now
        elif self._remaining:
            self._remaining -= 1
        return bool(self._remaining)
