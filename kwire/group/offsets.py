"""Committed offsets of all groups of one shard: a plain index.

Offsets of an open transaction stand aside until its marker comes: then they count, or never
were.  Times are wall-clock milliseconds, as in the records.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import NO_PRODUCER

NO_EXPIRY: Final = -1


class Committed(NamedTuple):
    """How far a group has read one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    """Set by clients of old versions only; else retention decides."""
    topic_id: bytes
    place: int
    """Grows with each record: of two commits the later written counts."""

    @classmethod
    def from_record(cls, value: OffsetCommitValue, place: int) -> "Committed":
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            place,
        )

    def expired(self, since_ms: int, now_ms: int, retention_ms: int) -> bool:
        """Whether nobody has needed this offset for long enough (KIP-211)."""
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms


Spot = tuple[str, str, int]
"""Group, topic, partition."""


@attrs.define
class Offsets:
    """Group -> topic -> partition -> what was committed."""

    _groups: dict[str, dict[str, dict[int, Committed]]] = attrs.field(factory=dict, init=False)
    _by_topic: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """Topic -> the groups that have committed for it."""
    _open: dict[int, dict[Spot, Committed]] = attrs.field(factory=dict, init=False)
    """Producer id -> what its open transaction commits."""
    _unstable: dict[Spot, int] = attrs.field(factory=dict, init=False)
    """Spot -> in how many open transactions it is."""
    count: int = attrs.field(default=0, init=False)
    _place: int = attrs.field(default=0, init=False)

    def of(self, group_id: str) -> dict[str, dict[int, Committed]]:
        """All of a group's offsets, by topic and partition; not to be changed."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def groups(self) -> list[str]:
        return list(self._groups)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have committed for a topic."""
        return list(self._by_topic.get(topic, ()))

    def unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return bool(self._unstable) and (group_id, topic, partition) in self._unstable

    def has_open(self, group_id: str) -> bool:
        """Whether an open transaction commits for this group."""
        return any(spot[0] == group_id for spot in self._unstable)

    def open_spots(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Topic and partition of what open transactions commit for a group."""
        return ((topic, part) for group, topic, part in self._unstable if group == group_id)

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """A written commit or tombstone."""
        spot = (key.group, key.topic, key.partition)
        self._place += 1
        committed = None if value is None else Committed.from_record(value, self._place)
        if producer_id != NO_PRODUCER and committed is not None:
            pending = self._open.setdefault(producer_id, {})
            if spot not in pending:
                self._unstable[spot] = self._unstable.get(spot, 0) + 1
            pending[spot] = committed
            return
        if committed is None:
            self._forget_open(spot)
        self._put(spot, committed)

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[str]:
        """A marker: take its transaction's offsets, or forget them; the groups concerned."""
        pending = self._open.pop(producer_id, {})
        for spot, value in pending.items():
            self._settle(spot)
            current = self.get(*spot)
            if committed and (current is None or current.place < value.place):
                self._put(spot, value)
        return sorted({spot[0] for spot in pending})

    def _put(self, spot: Spot, committed: Committed | None) -> None:
        group_id, topic, partition = spot
        if committed is not None:
            partitions = self._groups.setdefault(group_id, {}).setdefault(topic, {})
            if not partitions:
                self._by_topic.setdefault(topic, {})[group_id] = None
            self.count += partition not in partitions
            partitions[partition] = committed
            return
        topics = self._groups.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self.count -= 1
        if not partitions:
            del topics[topic]
            groups = self._by_topic[topic]
            del groups[group_id]
            if not groups:
                del self._by_topic[topic]
        if not topics:
            del self._groups[group_id]

    def _settle(self, spot: Spot) -> None:
        left = self._unstable[spot] - 1
        if left:
            self._unstable[spot] = left
        else:
            del self._unstable[spot]

    def _forget_open(self, spot: Spot) -> None:
        """A tombstone also removes what open transactions would commit."""
        if spot not in self._unstable:
            return
        for pending in self._open.values():
            if pending.pop(spot, None) is not None:
                self._settle(spot)
