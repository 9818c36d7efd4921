"""When a log directory counts as slow, and when as quick again.

One slow write makes it slow: the loop has waited for it. While the kernel throttles writers of
dirty pages, some writes take long and those between are quick, so that one quick write says
nothing; a directory is quick again after a run of them, and after a longer run each time that it
was slow again soon.
"""

from typing import Final

SLOW_WRITE_SECONDS: Final = 0.05
"""A write that takes longer makes its directory slow."""
RUN_MIN: Final = 16
RUN_MAX: Final = 4096
"""Quick writes in a row that make a directory quick again, at first and at most."""
SOON_SECONDS: Final = 60.0


class Pace:
    """The memory of one directory."""

    def __init__(self) -> None:
        self._run = RUN_MIN
        self._left = 0
        self._slow_at = float("-inf")

    def is_slow_after(self, elapsed_s: float, now: float) -> bool:
        """Whether the directory is slow after a write that took so long and ended now."""
        if elapsed_s > SLOW_WRITE_SECONDS:
            if not self._left:
                relapse = now - self._slow_at < SOON_SECONDS
                self._run = min(2 * self._run, RUN_MAX) if relapse else RUN_MIN
            self._left = self._run
            self._slow_at = now
        elif self._left:
            self._left -= 1
        return bool(self._left)
