"""The committed offsets of all groups of one shard: a plain index.

The offsets of an open transaction are pending until its marker is written; then they are committed
or discarded. The last commit written for a partition wins, so a pending offset is discarded if
another commit is written after it. Times are wall-clock milliseconds, as in the records. Committed
offsets are stored as bytes, which the garbage collector does not visit, so even a million of them
do not slow down a collection.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import attrs

from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.coordinator.decision import Record
from kwire.records.header import NO_PRODUCER
from kwire.types import ZERO_UUID

NO_EXPIRY: Final = -1
_NUMBERS: Final = struct.Struct("<qiqq16s")
"""The offset, the leader's epoch, both times and the topic's id; the metadata follows in UTF-8."""
pack_numbers: Final[Callable[[int, int, int, int, bytes], bytes]] = _NUMBERS.pack
"""Packs the numbers of a committed offset without metadata."""

Packed: TypeAlias = bytes
"""A committed offset, packed into bytes."""


class Committed(NamedTuple):
    """The committed offset of a group for one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    """The expiry time that only old clients set; with NO_EXPIRY, the retention time applies."""
    topic_id: bytes

    @classmethod
    def unpack(cls, packed: Packed) -> "Committed":
        offset, leader_epoch, commit_ms, expire_ms, topic_id = _NUMBERS.unpack_from(packed)
        metadata = packed[_NUMBERS.size :].decode()
        return cls(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)

    def is_expired(self, since_ms: int, now_ms: float, retention_ms: int) -> bool:
        """Return whether this offset has expired (KIP-211).

        Without its own expiry time, an offset expires ``retention_ms`` after ``since_ms``.
        """
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - since_ms >= retention_ms


@attrs.define(eq=False, repr=False)
class GroupChange:
    """Offsets of a group to set or remove together, and a deleted group's own tombstones.

    They are written in one batch and applied together.
    """

    group_id: str
    committed: dict[str, dict[int, Packed]] = attrs.field(factory=dict)
    """The committed offsets by topic and partition."""
    removed: dict[str, list[int]] = attrs.field(factory=dict)
    tombstones: list[Record] = attrs.field(factory=list)


def pack(value: OffsetCommitValue) -> Packed:
    """Pack the committed offset of a record into bytes."""
    numbers = pack_numbers(
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
    """Return whether an offset's topic was deleted; False while ``topic_ids`` are unknown (None).

    A recreated topic has a new id. Old records have no id; they match any topic of that name.
    """
    if topic_ids is None:
        return False
    topic_id = topic_ids.get(topic)
    return topic_id is None or committed.topic_id not in (topic_id, ZERO_UUID)


GroupPartition = tuple[str, str, int]
"""A group id, a topic and a partition."""


@attrs.define(repr=False)
class PendingOffsets:
    """The offsets of one group in one open transaction, by topic and partition."""

    numbers: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """The numbers of the latest commits, in the order in which they were written."""
    values: dict[str, dict[int, Packed]] = attrs.field(factory=dict)
    """The offsets that a commit marker will put into effect; superseded offsets are removed."""

    def set(self, topic: str, partition: int, number: int, packed: Packed) -> None:
        self.numbers.setdefault(topic, {})[partition] = number
        self.values.setdefault(topic, {})[partition] = packed

    def supersede(self, topic: str, partition: int, number: int) -> None:
        """Discard the partition's offset if its number is at most ``number``; it stays unstable."""
        if self.numbers.get(topic, {}).get(partition, number + 1) <= number:
            self.values[topic].pop(partition, None)

    def drop(self, topic: str, partition: int) -> None:
        """Remove the partition's offset."""
        numbers = self.numbers.get(topic, {})
        if numbers.pop(partition, None) is not None:
            self.values[topic].pop(partition, None)
            if not numbers:
                del self.numbers[topic]


@attrs.frozen(eq=False, repr=False)
class UnstablePartitions(Collection[tuple[str, int]]):
    """A live view of the partitions whose offsets a group's open transactions may change."""

    _pending: Mapping[int, PendingOffsets]

    def __contains__(self, partition: object) -> bool:
        if not isinstance(partition, tuple):
            return False
        topic, index = partition
        return any(index in p.numbers.get(topic, ()) for p in self._pending.values())

    def __iter__(self) -> Iterator[tuple[str, int]]:
        pairs = (
            (topic, index)
            for pending in self._pending.values()
            for topic, numbers in pending.numbers.items()
            for index in numbers
        )
        return iter(dict.fromkeys(pairs))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self._pending)


@attrs.define(repr=False)
class Offsets:
    """The committed offsets by group, topic and partition."""

    _groups: dict[str, dict[str, dict[int, Packed]]] = attrs.field(factory=dict, init=False)
    _by_topic: dict[str, dict[str, None]] = attrs.field(factory=dict, init=False)
    """The groups that have committed offsets of a topic, by topic."""
    _pending: dict[str, dict[int, PendingOffsets]] = attrs.field(factory=dict, init=False)
    """The offsets in open transactions, by group and producer id."""
    _groups_in: dict[int, dict[str, None]] = attrs.field(factory=dict, init=False)
    """The groups to which an open transaction commits offsets, by producer id."""
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
        """Return whether an open transaction may change this offset."""
        return (topic, partition) in self.unstable_partitions(group_id)

    def has_pending(self, group_id: str) -> bool:
        """Return whether an open transaction commits offsets to this group."""
        return group_id in self._pending

    def unstable_partitions(self, group_id: str) -> Collection[tuple[str, int]]:
        """Return a live view of the topics and partitions that open transactions may change."""
        return UnstablePartitions(self._pending.get(group_id, {}))

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """Apply a written commit or tombstone."""
        group_partition = (key.group, key.topic, key.partition)
        committed = None if value is None else pack(value)
        if producer_id != NO_PRODUCER and committed is not None:
            self.hold_all(key.group, {key.topic: {key.partition: committed}}, producer_id)
            return
        if committed is None:
            self._drop_pending(group_partition)
            self._put(group_partition, None)
        else:
            self.commit(*group_partition, committed)

    def commit(self, group_id: str, topic: str, partition: int, committed: Packed) -> None:
        """Apply a written commit that does not belong to a transaction."""
        if group_id in self._pending:
            self._supersede((group_id, topic, partition), self._written)
        self._put((group_id, topic, partition), committed)

    def commit_all(self, group_id: str, commits: Mapping[str, Mapping[int, Packed]]) -> None:
        """Apply many written commits of one group, as :meth:`apply` would one by one."""
        for topic, committed in commits.items():
            self._put_all(group_id, topic, committed)
            if group_id in self._pending:
                for partition in committed:
                    self._supersede((group_id, topic, partition), self._written)

    def hold_all(
        self, group_id: str, commits: Mapping[str, Mapping[int, Packed]], producer_id: int
    ) -> None:
        """Hold back written commits of one group until their transaction ends."""
        self._groups_in.setdefault(producer_id, {})[group_id] = None
        by_producer = self._pending.setdefault(group_id, {})
        pending = by_producer.get(producer_id)
        if pending is None:
            pending = by_producer[producer_id] = PendingOffsets()
        for topic, committed in commits.items():
            for partition, packed in committed.items():
                self._written += 1
                pending.set(topic, partition, self._written, packed)

    def remove_all(self, group_id: str, removals: Mapping[str, Collection[int]]) -> None:
        """Apply many written tombstones of one group, as :meth:`apply` would one by one."""
        for topic, partitions in removals.items():
            if group_id in self._pending:
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
        """Commit or discard the pending offsets of a transaction; return the ids of its groups.

        The offsets of a topic take effect in a single map update, so even ten thousand offsets take
        little time.
        """
        group_ids = self._groups_in.pop(producer_id, {})
        for group_id in group_ids:
            pending = self._forget_pending(group_id, producer_id)
            if committed:
                self._commit_pending(group_id, pending)
        return sorted(group_ids)

    def _commit_pending(self, group_id: str, pending: PendingOffsets) -> None:
        for topic, values in pending.values.items():
            if group_id in self._pending:
                for partition in values:
                    number = pending.numbers[topic][partition]
                    self._supersede((group_id, topic, partition), number)
            if values:
                self._put_all(group_id, topic, values)

    def _forget_pending(self, group_id: str, producer_id: int) -> PendingOffsets:
        by_producer = self._pending[group_id]
        pending = by_producer.pop(producer_id)
        if not by_producer:
            del self._pending[group_id]
        return pending

    def _put_all(self, group_id: str, topic: str, committed: Mapping[int, Packed]) -> None:
        partitions = self._groups.setdefault(group_id, {}).setdefault(topic, {})
        if not partitions:
            self._by_topic.setdefault(topic, {})[group_id] = None
        count = len(partitions)
        partitions.update(committed)
        self.count += len(partitions) - count

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
        """Remove a group's entry for a topic once the group has no offsets left for it."""
        topics, groups = self._groups[group_id], self._by_topic[topic]
        del topics[topic], groups[group_id]
        if not topics:
            del self._groups[group_id]
        if not groups:
            del self._by_topic[topic]

    def _supersede(self, group_partition: GroupPartition, number: int) -> None:
        """Discard the partition's pending offsets up to ``number``: a later commit wins."""
        group_id, topic, partition = group_partition
        for pending in self._pending.get(group_id, {}).values():
            pending.supersede(topic, partition, number)

    def _drop_pending(self, group_partition: GroupPartition) -> None:
        """Remove the pending commits of an offset, because a tombstone was written."""
        group_id, topic, partition = group_partition
        for producer_id, pending in list(self._pending.get(group_id, {}).items()):
            pending.drop(topic, partition)
            if not pending.numbers:
                self._forget_pending(group_id, producer_id)
                self._groups_in[producer_id].pop(group_id)
