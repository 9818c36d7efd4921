"""A limit on a byte rate, and the limits on throttled replicas, which tools set.

Pure state; the caller passes the time. Rules of throttled replicas, as in Kafka (KIP-73):

* The topic settings ``leader.replication.throttled.replicas`` and
  ``follower.replication.throttled.replicas`` name throttled replicas, by partition and broker. A
  broker limits the total bytes that it sends for them as the leader, and the total bytes that it
  fetches for them as a follower.
* The bytes of all throttled replicas count, but only replicas that are out of sync are held back.
* The rate is the number of bytes in the last ``replication.quota.window.num`` windows, divided by
  the time since the oldest of these windows began, or by one window if that is longer.

Client quotas use the same rate, but divide at least by the length of all full windows. Quotas of
addresses count connections instead of bytes.
"""

from collections import deque
from collections.abc import Set
from math import inf
from typing import Final, Self

import attrs

THROTTLE_MS_MAX: Final = (1 << 31) - 1
"""The longest throttle time that a response can express: 24 days."""


def is_throttled(replicas: Set[str], partition: int, broker: int) -> bool:
    """Return whether a topic's setting includes the replica of a partition on a broker."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker}" in replicas)


@attrs.define(eq=False, repr=False)
class _Window:
    began_at: float
    last_at: float
    size_bytes: int


@attrs.define(eq=False, repr=False)
class RateLimit:
    """A limit in bytes per second, and the bytes counted in the last windows."""

    bytes_per_s: float = inf
    window_count: int = 11
    window_s: float = 1.0
    windows_min: int = 1
    """The minimum number of windows over which the rate is measured."""
    _windows: deque[_Window] = attrs.field(factory=deque)

    @classmethod
    def of_quota(cls, rate: float, window_count: int, window_s: float) -> Self:
        """Return the limit of a quota, whose rate is measured at least over all full windows."""
        return cls(rate, window_count, window_s, windows_min=max(window_count - 1, 1))

    def record(self, size_bytes: int, now: float) -> None:
        """Count bytes that were sent or received."""
        windows = self._windows
        if not windows or now - windows[-1].began_at >= self.window_s:
            windows.append(_Window(now, now, 0))
        windows[-1].size_bytes += size_bytes
        windows[-1].last_at = now

    def is_exceeded(self, now: float) -> bool:
        """Return whether the rate is above the limit."""
        return self._size(now) > self.bytes_per_s * self._elapsed_s(now)

    def pause_s(self, now: float) -> float:
        """Return the seconds until the rate may be back within the limit, at most one window."""
        size, limit = self._size(now), self.bytes_per_s
        if not limit:
            return self.window_s
        return max(0.0, min(size / limit - self._elapsed_s(now), self.window_s))

    def excess_ms(self, now: float) -> int:
        """Return the milliseconds by which the counted bytes are ahead of the rate, or 0."""
        excess_s = self._size(now) / self.bytes_per_s - self._elapsed_s(now)
        return max(0, round(min(excess_s * 1000, THROTTLE_MS_MAX)))

    def available_bytes(self, now: float) -> int:
        """Return how many more bytes the rate allows now; at least 1, which lets a batch pass."""
        return max(1, int(self.bytes_per_s * self._elapsed_s(now)) - self._size(now))

    def _size(self, now: float) -> int:
        """Return the bytes counted in the last windows."""
        windows, expiry_s = self._windows, self.window_count * self.window_s
        while windows and now - windows[0].last_at >= expiry_s:
            windows.popleft()
        return sum(window.size_bytes for window in windows)

    def _elapsed_s(self, now: float) -> float:
        began_at = self._windows[0].began_at if self._windows else now
        return max(now - began_at, self.windows_min * self.window_s)


@attrs.define(eq=False, repr=False)
class Throttles:
    """The limits of one broker, as the leader and as a follower of throttled replicas."""

    leader: RateLimit = attrs.field(factory=RateLimit)
    follower: RateLimit = attrs.field(factory=RateLimit)
