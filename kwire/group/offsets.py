"""The committed offsets of all groups of one shard: a plain index.

Offsets of an open transaction are pending until its marker is written: then they are committed or
discarded.  Of two commits for one partition the later written one counts, so a pending offset is
discarded if another commit is written after it.  Times are wall-clock milliseconds, as in the
records.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.records.header import NO_PRODUCER
from kwire.types import ZERO_UUID

NO_EXPIRY: Final = -1


class Committed(NamedTuple):
    """The committed offset of a group for one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    """The expiry time, set only by clients of old versions; without it retention decides."""
    topic_id: bytes

    @classmethod
    def from_record(cls, value: OffsetCommitValue) -> "Committed":
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
        )

    def is_expired(self, since_ms: int, now_ms: int, retention_ms: int) -> bool:
        """Whether this offset has been unused for the retention time (KIP-211)."""
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms


def is_of_deleted_topic(
    topic_ids: Mapping[str, bytes] | None, topic: str, committed: Committed
) -> bool:
    """Whether an offset's topic was deleted; False while ``topic_ids`` are not known (None).

    A later topic with the same name has another id. Old records have no id: they count for any.
    """
    if topic_ids is None:
        return False
    topic_id = topic_ids.get(topic)
    return topic_id is None or committed.topic_id not in (topic_id, ZERO_UUID)


Spot = tuple[str, str, int]
"""Group, topic, partition."""


@attrs.define
class Offsets:
    """The committed offsets by group, topic and partition."""

    _groups: dict[str, dict[str, dict[int, Committed]]] = attrs.field(factory=dict, init=False)
    _by_topic: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """The groups that have committed offsets of a topic, by topic."""
    _open: dict[int, dict[Spot, tuple[int, Committed | None]]] = attrs.field(
        factory=dict, init=False
    )
    """Producer id -> what its open transaction commits, each with its number in the order in which
    they were written; None where a later commit counts already."""
    _unstable: dict[str, dict[tuple[str, int], int]] = attrs.field(factory=dict, init=False)
    """Group -> topic and partition -> in how many open transactions the offset is."""
    count: int = attrs.field(default=0, init=False)
    _written: int = attrs.field(default=0, init=False)
    """The number of transactional commits written so far."""

    def of(self, group_id: str) -> dict[str, dict[int, Committed]]:
        """Return a group's offsets by topic and partition; the caller must not change them."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def groups(self) -> list[str]:
        return list(self._groups)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        return list(self._by_topic.get(topic, ()))

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return (topic, partition) in self.open_spots(group_id)

    def has_open(self, group_id: str) -> bool:
        """Whether an open transaction commits for this group."""
        return group_id in self._unstable

    def open_spots(self, group_id: str) -> Collection[tuple[str, int]]:
        """Topic and partition of what open transactions commit for a group; a live view."""
        return self._unstable.get(group_id, {}).keys()

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """Apply a written commit or tombstone."""
        spot = (key.group, key.topic, key.partition)
        committed = None if value is None else Committed.from_record(value)
        if producer_id != NO_PRODUCER and committed is not None:
            pending = self._open.setdefault(producer_id, {})
            if spot not in pending:
                open_counts, place = self._unstable.setdefault(key.group, {}), spot[1:]
                open_counts[place] = open_counts.get(place, 0) + 1
            self._written += 1
            pending[spot] = self._written, committed
            return
        if committed is None:
            self._forget_open(spot)
        else:
            self._overtake(spot, self._written)
        self._put(spot, committed)

    def commit_all(self, group_id: str, commits: Mapping[str, Mapping[int, Committed]]) -> None:
        """Apply written commits of one group, as :meth:`apply` does one after the other."""
        topics = self._groups.setdefault(group_id, {})
        for topic, committed in commits.items():
            partitions = topics.setdefault(topic, {})
            if not partitions:
                self._by_topic.setdefault(topic, {})[group_id] = None
            count = len(partitions)
            partitions.update(committed)
            self.count += len(partitions) - count
            if self._unstable:
                for partition in committed:
                    self._overtake((group_id, topic, partition), self._written)

    def remove_all(self, group_id: str, spots: Mapping[str, Collection[int]]) -> None:
        """Apply written tombstones of one group, as :meth:`apply` does one after the other."""
        for topic, partitions in spots.items():
            for partition in partitions:
                spot = (group_id, topic, partition)
                if self._unstable:
                    self._forget_open(spot)
                self._put(spot, None)

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[str]:
        """Commit or discard the pending offsets of a transaction; return the groups concerned."""
        pending = self._open.pop(producer_id, {})
        for spot, (number, value) in pending.items():
            self._settle(spot)
            if committed and value is not None:
                self._overtake(spot, number)
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
        group_id, place = spot[0], spot[1:]
        open_counts = self._unstable[group_id]
        open_counts[place] -= 1
        if not open_counts[place]:
            del open_counts[place]
        if not open_counts:
            del self._unstable[group_id]

    def _overtake(self, spot: Spot, number: int) -> None:
        """A commit counts: those up to this number that stand aside no longer will."""
        if not self.is_unstable(*spot):
            return
        for pending in self._open.values():
            written, value = pending.get(spot, (0, None))
            if value is not None and written <= number:
                pending[spot] = written, None

    def _forget_open(self, spot: Spot) -> None:
        """A tombstone also removes what open transactions would commit."""
        if not self.is_unstable(*spot):
            return
        for pending in self._open.values():
            if pending.pop(spot, None) is not None:
                self._settle(spot)
