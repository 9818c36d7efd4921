"""The Fetches that a leader holds until there is something to return.

Rules: all of them are checked only after the log's end or the high watermark has moved; any other
event checks only Fetches whose deadline has passed. So an event costs the same with a thousand
brokers as with one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from math import inf
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.codec.messages.fetch import FetchRequest


@attrs.define(eq=False)
class HeldFetch:
    """A Fetch that has not been answered yet."""

    token: Hashable
    request: FetchRequest
    deadline: float
    received_at: float
    """On the clock of ``RaftState.world_now``."""


@attrs.define(eq=False)
class HeldFetches:
    """A leader's held Fetches, the earliest deadline first."""

    compared_with: tuple[int, int | None] | None = None
    """The log end offset and high watermark against which every held Fetch has been checked."""
    _queue: list[tuple[float, int, HeldFetch]] = attrs.field(factory=list)
    _added: int = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def deadline(self) -> float:
        """The earliest deadline of the held Fetches; infinite if there are none."""
        return self._queue[0][0] if self._queue else inf

    def add(self, fetch: HeldFetch) -> None:
        self._added += 1
        heapq.heappush(self._queue, (fetch.deadline, self._added, fetch))

    def take_expired(self, now: float) -> list[HeldFetch]:
        """Remove and return the Fetches whose deadline has passed."""
        expired = []
        while self._queue and self._queue[0][0] <= now:
            expired.append(heapq.heappop(self._queue)[2])
        return expired

    def take_all(self) -> list[HeldFetch]:
        """Remove and return all held Fetches, earliest deadline first."""
        everything = [fetch for _, _, fetch in sorted(self._queue, key=lambda entry: entry[:2])]
        self._queue.clear()
        return everything
