"""The queue of partitions whose leader and ISR need an update because a broker came or went.

Plain data of the active controller. It is not in the log: a new active controller refills it from
its image (:func:`kwire.raftmeta.controller.leader_updates.resume_leader_updates`) and so continues
where the previous one stopped.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

import attrs

from kwire.types import NO_LEADER, TopicIdPartition

SLICE_PARTITIONS: Final = 1_000
"""Partitions that one decision checks, in steps."""
FIRST_PARTITIONS: Final = 160
"""Partitions that a decision about a broker also checks, without pausing: about 2 ms."""

INHERITED: Final = -2
"""Used in place of a broker id: partitions that a new active controller found leaderless."""


class LeaderUpdateSlice(NamedTuple):
    """The next partitions to check, and the broker that left them.

    The broker is ``NO_LEADER`` or ``INHERITED`` if the partitions have no leader.
    """

    broker: int
    partitions: list[TopicIdPartition]
    has_others: bool
    """True if partitions of other brokers are queued behind."""
    is_last: bool
    """True if no more partitions of this broker are queued."""


@attrs.define(eq=False, repr=False)
class LeaderUpdateQueue:
    """The partitions whose leader and ISR need an update, in one queue per broker."""

    size: int = SLICE_PARTITIONS
    _pending: dict[int, deque[TopicIdPartition]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, broker: int) -> bool:
        return broker in self._pending

    @property
    def first_size(self) -> int:
        """The number of partitions that another decision may check as its first slice."""
        return min(self.size, FIRST_PARTITIONS)

    def pending(self) -> dict[int, frozenset[TopicIdPartition]]:
        """Return a copy of the partitions still to be checked, by broker; for checks."""
        return {broker: frozenset(partitions) for broker, partitions in self._pending.items()}

    def split(
        self, partitions: Iterable[TopicIdPartition]
    ) -> tuple[list[TopicIdPartition], deque[TopicIdPartition]]:
        """Return a first slice, which the calling decision handles, and the rest to be queued."""
        rest = deque(partitions)
        return [rest.popleft() for _ in range(min(self.first_size, len(rest)))], rest

    def put(self, broker: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Queue partitions for a broker in place of those queued before."""
        pending = deque(partitions)
        if pending:
            self._pending[broker] = pending
        else:
            self.end(broker)

    def next_slice(self) -> LeaderUpdateSlice:
        """Return the next slice, which is empty if nothing is pending."""
        broker = next(iter(self._pending), NO_LEADER)
        pending = self._pending.get(broker, ())
        partitions = list(islice(pending, self.size))
        is_last = len(partitions) == len(pending)
        return LeaderUpdateSlice(broker, partitions, len(self._pending) > 1, is_last)

    def drop(self, broker: int, count: int) -> None:
        """Remove the first ``count`` partitions of a broker, because they have been checked."""
        pending = self._pending.get(broker)
        if pending is None:
            return
        for _ in range(min(count, len(pending))):
            pending.popleft()
        if not pending:
            del self._pending[broker]

    def end(self, broker: int) -> None:
        """Drop the pending partitions of a broker."""
        self._pending.pop(broker, None)

    def clear(self) -> None:
        """Drop everything: leadership of the quorum ended."""
        self._pending.clear()
