"""The limits on the bytes of throttled replicas (KIP-73), which Kafka's reassignment tool sets.

Pure state; the caller passes the time. Rules, Kafka's:

* A topic's settings ``leader.replication.throttled.replicas`` and the same of followers name its
  throttled replicas, by partition and broker. A broker limits the sum of the bytes that it sends as
  their leader, and the sum of those that it fetches as their follower.
* The bytes of all throttled replicas count, but only those out of sync are held back.
* A rate is the number of bytes in the last ``replication.quota.window.num`` windows, by the time
  since the oldest of them began, which counts as one window at least.
"""

from collections import deque
from collections.abc import Set
from math import inf

from kwire import attrs


def is_throttled(replicas: Set[str], partition: int, broker: int) -> bool:
    """Whether a topic's setting names the replica of a partition on a broker."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker}" in replicas)


@attrs.define
class _Window:
    began_at: float
    last_at: float
    size_bytes: int


@attrs.define(eq=False)
class RateLimit:
    """A limit of bytes per second, and the bytes of the last windows."""

    bytes_per_s: float = inf
    window_count: int = 11
    window_s: float = 1.0
    _windows: deque[_Window] = attrs.field(factory=deque)

    def record(self, size_bytes: int, now: float) -> None:
        """Count bytes that were sent or received."""
        windows = self._windows
        if not windows or now - windows[-1].began_at >= self.window_s:
            windows.append(_Window(now, now, 0))
        windows[-1].size_bytes += size_bytes
        windows[-1].last_at = now

    def is_exceeded(self, now: float) -> bool:
        """Whether the rate is above the limit."""
        return self._size(now) > self.bytes_per_s * self._elapsed_s(now)

    def pause_s(self, now: float) -> float:
        """Return the time until the limit may no longer be exceeded, at most a window."""
        size, limit = self._size(now), self.bytes_per_s
        if not limit:
            return self.window_s
        return max(0.0, min(size / limit - self._elapsed_s(now), self.window_s))

    def _size(self, now: float) -> int:
        """Return the bytes of the last windows."""
        windows, expiry_s = self._windows, self.window_count * self.window_s
        while windows and now - windows[0].last_at >= expiry_s:
            windows.popleft()
        return sum(window.size_bytes for window in windows)

    def _elapsed_s(self, now: float) -> float:
        began_at = self._windows[0].began_at if self._windows else now
        return max(now - began_at, self.window_s)


@attrs.define(eq=False)
class Throttles:
    """The limits of one broker, as the leader and as a follower of throttled replicas."""

    leader: RateLimit = attrs.field(factory=RateLimit)
    follower: RateLimit = attrs.field(factory=RateLimit)
