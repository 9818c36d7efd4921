"""The committed offsets of all groups of one shard: a plain index.

Offsets of an open transaction are pending until its marker is written: then they are committed or
discarded.  Of two commits for one partition the later written one counts, so a pending offset is
discarded if another commit is written after it.  Times are wall-clock milliseconds, as in the
records.  What is committed is kept in bytes: a collection does not visit those, so that a million
of them do not make it long.
"""

import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from kwire import attrs
from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.records.header import NO_PRODUCER
from kwire.types import ZERO_UUID

NO_EXPIRY: Final = -1
_NUMBERS: Final = struct.Struct("<qiqq16s")
"""The offset, the leader's epoch, both times and the topic's id; the metadata follows in UTF-8."""

Packed: TypeAlias = bytes
"""A committed offset in bytes."""


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
    def unpack(cls, packed: Packed) -> "Committed":
        offset, leader_epoch, commit_ms, expire_ms, topic_id = _NUMBERS.unpack_from(packed)
        metadata = packed[_NUMBERS.size :].decode()
        return cls(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)

    def is_expired(self, since_ms: int, now_ms: float, retention_ms: int) -> bool:
        """Whether this offset has been unused for the retention time (KIP-211)."""
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms


def pack(value: OffsetCommitValue) -> Packed:
    """Return the bytes of a record's committed offset."""
    numbers = _NUMBERS.pack(
        value.offset,
        value.leader_epoch,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )
    return numbers + value.metadata.encode()


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


GroupPartition = tuple[str, str, int]
"""A group, and a topic and partition that it commits offsets of."""


@attrs.define
class Offsets:
    """The committed offsets by group, topic and partition."""

    _groups: dict[str, dict[str, dict[int, Packed]]] = attrs.field(factory=dict, init=False)
    _by_topic: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """The groups that have committed offsets of a topic, by topic."""
    _pending: dict[int, dict[GroupPartition, tuple[int, Packed | None]]] = attrs.field(
        factory=dict, init=False
    )
    """The offsets in open transactions by producer id, with their numbers in the order in which
    they were written; None for an offset that was superseded by a later commit."""
    _unstable: dict[str, dict[tuple[str, int], int]] = attrs.field(factory=dict, init=False)
    """The number of open transactions that commit an offset, by group, topic and partition."""
    count: int = attrs.field(default=0, init=False)
    _written: int = attrs.field(default=0, init=False)
    """The number of transactional commits written so far."""

    def of(self, group_id: str) -> dict[str, dict[int, Packed]]:
        """Return a group's offsets by topic and partition; the caller must not change them."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        packed = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if packed is None else Committed.unpack(packed)

    def groups(self) -> list[str]:
        return list(self._groups)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        return list(self._by_topic.get(topic, ()))

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return (topic, partition) in self.unstable_partitions(group_id)

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction commits offsets of this group."""
        return group_id in self._unstable

    def unstable_partitions(self, group_id: str) -> Collection[tuple[str, int]]:
        """Return a live view of the topics and partitions that open transactions may change."""
        return self._unstable.get(group_id, {}).keys()

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """Apply a written commit or tombstone."""
        group_partition = (key.group, key.topic, key.partition)
        committed = None if value is None else pack(value)
        if producer_id != NO_PRODUCER and committed is not None:
            pending = self._pending.setdefault(producer_id, {})
            if group_partition not in pending:
                counts, partition = self._unstable.setdefault(key.group, {}), group_partition[1:]
                counts[partition] = counts.get(partition, 0) + 1
            self._written += 1
            pending[group_partition] = self._written, committed
            return
        if committed is None:
            self._drop_pending(group_partition)
        else:
            self._supersede(group_partition, self._written)
        self._put(group_partition, committed)

    def commit_all(self, group_id: str, commits: Mapping[str, Mapping[int, Packed]]) -> None:
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
                    self._supersede((group_id, topic, partition), self._written)

    def remove_all(self, group_id: str, removals: Mapping[str, Collection[int]]) -> None:
        """Apply written tombstones of one group, as :meth:`apply` does one after the other."""
        for topic, partitions in removals.items():
            if group_id in self._unstable:
                for partition in partitions:
                    self._drop_pending((group_id, topic, partition))
            committed = self._groups.get(group_id, {}).get(topic)
            if committed is not None:
                count = len(committed)
                for partition in partitions:
                    committed.pop(partition, None)
                self.count -= count - len(committed)
                if not committed:
                    self._forget(group_id, topic)

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[str]:
        """Commit or discard the pending offsets of a transaction; return the groups concerned."""
        pending = self._pending.pop(producer_id, {})
        for group_partition, (number, value) in pending.items():
            self._decrement_unstable(group_partition)
            if committed and value is not None:
                self._supersede(group_partition, number)
                self._put(group_partition, value)
        return sorted({group_id for group_id, _, _ in pending})

    def _put(self, group_partition: GroupPartition, committed: Packed | None) -> None:
        group_id, topic, partition = group_partition
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
            self._forget(group_id, topic)

    def _forget(self, group_id: str, topic: str) -> None:
        """Drop the entry of a topic of which a group has no offsets left."""
        topics, groups = self._groups[group_id], self._by_topic[topic]
        del topics[topic], groups[group_id]
        if not topics:
            del self._groups[group_id]
        if not groups:
            del self._by_topic[topic]

    def _decrement_unstable(self, group_partition: GroupPartition) -> None:
        group_id, partition = group_partition[0], group_partition[1:]
        counts = self._unstable[group_id]
        counts[partition] -= 1
        if not counts[partition]:
            del counts[partition]
        if not counts:
            del self._unstable[group_id]

    def _supersede(self, group_partition: GroupPartition, number: int) -> None:
        """Discard the pending commits up to this number, since a later commit takes effect."""
        if not self.is_unstable(*group_partition):
            return
        for pending in self._pending.values():
            written, value = pending.get(group_partition, (0, None))
            if value is not None and written <= number:
                pending[group_partition] = written, None

    def _drop_pending(self, group_partition: GroupPartition) -> None:
        """Remove the pending commits of an offset for which a tombstone was written."""
        if not self.is_unstable(*group_partition):
            return
        for pending in self._pending.values():
            if pending.pop(group_partition, None) is not None:
                self._decrement_unstable(group_partition)
