"""Decides how long the metadata log waits for file descriptors that it lacks.

Rule: the loop runs between two attempts, also if files could be closed.  A call that opens more
files than there are descriptors leaves those that it could open to be closed, each time: it
succeeds when connections end, and they end only while the loop runs.
"""

import logging
from math import inf
from typing import Final

from kwire import attrs
from kwire.clock import Clock
from kwire.raftmeta.storage.storage import MetadataStorage

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.1
"""Before the third attempt, or the second if no file could be closed; doubled with each one."""
LONGEST_WAIT_S: Final = 1.0
_DOUBLINGS: Final = 10
"""More than lead to the longest wait."""


@attrs.define
class Scarcity:
    """A node's lack of descriptors for its metadata log."""

    _storage: MetadataStorage
    _clock: Clock
    _logged_until: float = -inf
    """A failure before this time belongs to the shortage that was logged."""

    def wait_s(self, error: Exception, attempt: int) -> float:
        """Close files that are not in use; return how long to sleep after a failed attempt.

        Attempts count from 0. After 0 seconds, too, the loop has to run once.
        """
        if self._storage.shed() and attempt == 0:
            return 0.0
        now = self._clock.now()
        if now >= self._logged_until:
            log.warning("metadata log waits for descriptors error=%s", error)
        self._logged_until = now + 2 * LONGEST_WAIT_S
        return min(FIRST_WAIT_S * (1 << min(attempt, _DOUBLINGS)), LONGEST_WAIT_S)
