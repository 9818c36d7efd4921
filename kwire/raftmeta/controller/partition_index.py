"""An index of partitions by broker, so that a broker's change takes time only for its partitions.

The active controller keeps one index beside its image: each applied delta moves the partitions that
it changes, and a new active controller builds the index once, in steps. An index yields partitions
in the order in which they were added or put behind; a newly built index is in the order of topic
names, so the same history gives the same order in every process.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import attrs

from kwire.drive import run_steps
from kwire.raftmeta.metadata.image import MetadataImage, PartitionImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.image_loader import STEP_RECORDS, Steps
from kwire.types import NO_LEADER, TopicIdPartition

BUILD_PARTITIONS: Final = 1_000
"""Partitions that one step of a build indexes: about 2 ms."""

_Partitions = dict[TopicIdPartition, None]
_NOTHING: Final[_Partitions] = {}


@attrs.define(repr=False)
class PartitionIndex:
    """The partitions that each broker leads, and those whose ISR or ELR contains it."""

    _led: dict[int, _Partitions] = attrs.field(factory=dict)
    _members: dict[int, _Partitions] = attrs.field(factory=dict)
    _astray: dict[int, _Partitions] = attrs.field(factory=dict)
    """Partitions not led by their preferred leader, keyed by that preferred leader."""

    @classmethod
    def of(cls, image: MetadataImage) -> "PartitionIndex":
        """Build the index of a whole image without pausing."""
        index = cls()
        for _ in index.build(image):
            pass
        return index

    def build(self, image: MetadataImage) -> Iterator[None]:
        """Index a whole image; yield after every ``BUILD_PARTITIONS`` partitions."""
        count = 0
        for _, topic_id in sorted(image.topic_ids.items()):
            for number, partition in sorted(image.topics[topic_id].partitions.items()):
                self._add((topic_id, number), partition)
                count += 1
                if count % BUILD_PARTITIONS == 0:
                    yield

    def led_by(self, broker: int) -> Collection[TopicIdPartition]:
        """Return the partitions that a broker leads; for ``NO_LEADER``, those without a leader."""
        return self._led.get(broker, _NOTHING)

    def with_member(self, broker: int) -> Collection[TopicIdPartition]:
        """Return the partitions whose ISR or ELR contains a broker."""
        return self._members.get(broker, _NOTHING)

    def put_behind(self, broker: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Put those of ``partitions`` whose ISR or ELR contains a broker behind the others."""
        members = self._members.get(broker, _NOTHING)
        for key in partitions:
            if key in members:
                del members[key]
                members[key] = None

    def led_by_others(self, preferred: int) -> Collection[TopicIdPartition]:
        """Return the partitions that prefer this broker as leader but are not led by it."""
        return self._astray.get(preferred, _NOTHING)

    def update(self, delta: MetadataDelta) -> int:
        """Apply an image's changes without pausing; return how many partitions changed."""
        return run_steps(self.updating(delta))

    def updating(self, delta: MetadataDelta) -> Steps[int]:
        """Apply an image's changes step by step; return how many partitions changed."""
        touched = 0
        for topic_id, topic_before in delta.deleted_topics.items():
            for number, partition in topic_before.partitions.items():
                self._remove((topic_id, number), partition)
                touched += 1
                if touched % STEP_RECORDS == 0:
                    yield
        for topic_id, numbers in delta.partitions.items():
            topic = delta.before.topics.get(topic_id)
            after = delta.after.topics[topic_id].partitions
            for number in sorted(numbers):
                key = (topic_id, number)
                old = None if topic is None else topic.partitions.get(number)
                if old is not None:
                    self._move(key, old, after[number])
                else:
                    self._add(key, after[number])
                touched += 1
                if touched % STEP_RECORDS == 0:
                    yield
        return touched

    def _move(self, key: TopicIdPartition, old: PartitionImage, new: PartitionImage) -> None:
        before, after = _members(old), _members(new)
        for broker in before:
            if broker not in after:
                self._discard(self._members, broker, key)
        for broker in after:
            if broker not in before:
                self._members.setdefault(broker, {})[key] = None
        if old.leader != new.leader:
            self._discard(self._led, old.leader, key)
            self._led.setdefault(new.leader, {})[key] = None
        if _astray(old) != _astray(new):
            self._discard(self._astray, _astray(old), key)
            self._stray(key, new)

    def _add(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        self._led.setdefault(partition.leader, {})[key] = None
        for broker in _members(partition):
            self._members.setdefault(broker, {})[key] = None
        self._stray(key, partition)

    def _stray(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        preferred = _astray(partition)
        if preferred is not None:
            self._astray.setdefault(preferred, {})[key] = None

    def _remove(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        self._discard(self._led, partition.leader, key)
        for broker in _members(partition):
            self._discard(self._members, broker, key)
        self._discard(self._astray, _astray(partition), key)

    @staticmethod
    def _discard(
        partitions: dict[int, _Partitions], broker: int | None, key: TopicIdPartition
    ) -> None:
        if broker is None:
            return
        of_broker = partitions[broker]
        del of_broker[key]
        if not of_broker:
            del partitions[broker]


def _members(partition: PartitionImage) -> tuple[int, ...]:
    return partition.isr if not partition.elr else (*partition.isr, *partition.elr)


def _astray(partition: PartitionImage) -> int | None:
    """Return the preferred leader if it is not the leader."""
    preferred = partition.preferred_leader
    return None if preferred in (partition.leader, NO_LEADER) else preferred
