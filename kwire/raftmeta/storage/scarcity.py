"""Decides how long the metadata log waits for file descriptors that it lacks.

Rule: the event loop runs between two attempts, even if files could be closed. If a call needs more
files than there are descriptors, the files that it opened can be closed after each attempt; the
call succeeds only once connections end, and connections end only while the loop runs.
"""

import logging
from math import inf
from typing import Final

import attrs

from kwire.clock import Clock
from kwire.raftmeta.storage.storage import MetadataStorage

logger = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.1
"""The wait before the third attempt, or the second if no file could be closed; then doubles."""
LONGEST_WAIT_S: Final = 1.0
_DOUBLINGS: Final = 10
"""More doublings than the longest wait needs."""


@attrs.define(eq=False, repr=False)
class Scarcity:
    """One node's lack of descriptors for its metadata log."""

    _storage: MetadataStorage
    _clock: Clock
    _logged_until: float = -inf
    """Failures before this time belong to the shortage that was already logged."""

    def wait_s(self, error: Exception, attempt: int) -> float:
        """Close files that are not in use; return how long to sleep after a failed attempt.

        Attempts count from 0. Even after a result of 0 seconds, the event loop must run once.
        """
        if self._storage.shed() and attempt == 0:
            return 0.0
        now = self._clock.now()
        if now >= self._logged_until:
            logger.warning("metadata log waits for file descriptors error=%s", error)
        self._logged_until = now + 2 * LONGEST_WAIT_S
        return min(FIRST_WAIT_S * (1 << min(attempt, _DOUBLINGS)), LONGEST_WAIT_S)
