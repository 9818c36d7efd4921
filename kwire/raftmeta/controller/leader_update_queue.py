"""Partitions whose leader and ISR are still to be updated because a broker came or went.

Plain data of the active controller. It is not in the log: a new active controller fills it from
its image (:func:`kwire.raftmeta.controller.leader_updates.resume_leader_updates`) and so continues
where the last one stopped.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from kwire import attrs
from kwire.types import NO_LEADER, TopicIdPartition

SLICE_PARTITIONS: Final = 1_000
"""Partitions that one decision checks, step by step."""
FIRST_PARTITIONS: Final = 160
"""Partitions that a decision on a broker checks as well, at once: about 2 ms."""

INHERITED: Final = -2
"""In place of a broker: partitions that had no leader when this controller became active."""


class LeaderUpdateSlice(NamedTuple):
    """The partitions to check next, and the broker that left them.

    The broker is ``NO_LEADER`` or ``INHERITED`` if the partitions have no leader.
    """

    broker: int
    partitions: list[TopicIdPartition]


@attrs.define
class LeaderUpdateQueue:
    """Partitions whose leader and ISR are still to be updated, in a queue for each broker."""

    size: int = SLICE_PARTITIONS
    _pending: dict[int, deque[TopicIdPartition]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, broker: int) -> bool:
        return broker in self._pending

    @property
    def first_size(self) -> int:
        """The partitions of a slice that belongs to another decision."""
        return min(self.size, FIRST_PARTITIONS)

    def pending(self) -> dict[int, frozenset[TopicIdPartition]]:
        """Copy the partitions still to be checked, by broker; for checks."""
        return {broker: frozenset(partitions) for broker, partitions in self._pending.items()}

    def begin(self, broker: int, partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
        """Queue partitions, replacing those queued before, except the first slice.

        Return that slice: it belongs to the decision that queues the others.
        """
        self.put(broker, partitions)
        return self._take_slice(broker, self.first_size)

    def put(self, broker: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Queue partitions, replacing those queued before."""
        pending = deque(partitions)
        if pending:
            self._pending[broker] = pending
        else:
            self.end(broker)

    def take(self) -> LeaderUpdateSlice:
        """Remove and return the next slice, which is empty if nothing is pending."""
        broker = next(iter(self._pending), NO_LEADER)
        return LeaderUpdateSlice(broker, self._take_slice(broker, self.size))

    def _take_slice(self, broker: int, size: int) -> list[TopicIdPartition]:
        pending = self._pending.get(broker)
        if pending is None:
            return []
        partitions = [pending.popleft() for _ in range(min(size, len(pending)))]
        if not pending:
            del self._pending[broker]
        return partitions

    def end(self, broker: int) -> None:
        """Drop what is pending for a broker."""
        self._pending.pop(broker, None)

    def clear(self) -> None:
        """Drop everything: leadership of the quorum ended."""
        self._pending.clear()
