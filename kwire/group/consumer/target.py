"""The target assignment of a group: computed from a snapshot; only the changes are written.

A small group's target is computed within the decision that changed the group, as in Kafka. That of
a large group is computed in slices, as the steps of that decision; until it is installed, members
follow the last target. It is installed as the target of the group epoch from which it was computed,
unless there is a newer target by then, and without members that have left since then.
"""

import logging
from collections.abc import Generator, Iterator, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import attrs

from kwire.coordinator.decision import NOTHING, Decision, Moment, Record, Step
from kwire.coordinator.draft import Draft
from kwire.coordinator.partitioning import java_hash
from kwire.group.consumer.assignors import ASSIGNORS, Subscriber
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember, Partitions
from kwire.group.consumer.records import (
    target_epoch_record,
    target_record,
)
from kwire.group.consumer.topics import Topics
from kwire.hash_order import listing

logger = logging.getLogger(__name__)

G = TypeVar("G", bound="TargetGroup")
T = TypeVar("T")
"""The part of a target that one member gets: partitions or tasks."""
T_contra = TypeVar("T_contra", contravariant=True)

AT_ONCE: Final = 1_000
"""The largest number of members and partitions of a target that is computed in the decision."""
_STEPS_AT_ONCE: Final = 16

Changes = Mapping[str, ConsumerMember | None]
"""Members that the current decision adds or changes; None for members that it removes."""
Targets = dict[str, Partitions]
"""The partitions that each member should get, by member id."""


class TargetChange(NamedTuple, Generic[T]):
    """A target that was computed in slices; the shard applies it after it is written."""

    group_id: str
    epoch: int
    computed_ms: int
    targets: dict[str, T]


def computing(
    group: ConsumerGroup, changes: Changes, topics: Topics, assignor: str
) -> Generator[None, None, Targets]:
    """Compute the target of all members; yields after each small piece of work.

    The group is read only before the first yield.
    """
    members = {m: member for m, member in group.members.items() if m not in changes}
    members.update((m, member) for m, member in changes.items() if member is not None)
    targets, instances = dict(group.target), dict(group.instances)
    subscriptions = {m: group.subscriptions(member) for m, member in members.items()}
    yield
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    counts: dict[bytes, int] = {}
    subscribers: list[Subscriber] = []
    for member_id, member in members.items():
        names = subscriptions[member_id]
        if names not in ids:
            ids[names] = topic_ids_of(names, topics)
            for name in (yield from listing(sorted(names), java_hash)):
                if (topic_id := topics.id_of(name)) is not None:
                    counts[topic_id] = topics.partition_count(topic_id)
        former_id = instances.get(member.instance_id or "", member_id)
        current = targets.get(former_id, {})
        subscribers.append(Subscriber(member_id, member.instance_id, ids[names], current))
        yield
    return (yield from ASSIGNORS[assignor](subscribers, counts))


def topic_ids_of(names: frozenset[str], topics: Topics) -> frozenset[bytes]:
    """Return the ids of the topics that exist."""
    return frozenset(i for name in names if (i := topics.id_of(name)) is not None)


def target_size(group: ConsumerGroup, names: frozenset[str] | set[str], topics: Topics) -> int:
    """Return how many members and partitions the target of a group has."""
    ids = topic_ids_of(frozenset(names), topics)
    return len(group.members) + sum(topics.partition_count(topic_id) for topic_id in ids)


def target_records(
    group: ConsumerGroup, targets: Targets, epoch: int, now_ms: int
) -> Iterator[Record]:
    """Yield the records of the targets that have changed, then the record of the epoch."""
    for member_id, partitions in targets.items():
        if group.target.get(member_id) != partitions:
            yield target_record(group.group_id, member_id, partitions)
    yield target_epoch_record(group.group_id, epoch, now_ms)


class TargetGroup(Protocol):
    """A group, as used by the computation of its target."""

    @property
    def epoch(self) -> int: ...

    @property
    def assignment_epoch(self) -> int: ...

    @property
    def members(self) -> Mapping[str, object]: ...

    @property
    def target(self) -> Mapping[str, object]: ...


class TargetRecords(Protocol[T_contra]):
    """The functions that build the records of a target, for one kind of group."""

    def target_record(self, group_id: str, member_id: str, target: T_contra, /) -> Record: ...

    def target_tombstone(self, group_id: str, member_id: str) -> Record: ...

    def target_epoch_record(self, group_id: str, epoch: int, computed_ms: int) -> Record: ...


class GroupSource(Protocol[G, T]):
    """The shard of one kind of group, as used by the computation of a large target."""

    @property
    def groups(self) -> Mapping[str, G]: ...

    @property
    def target_records(self) -> TargetRecords[T]: ...

    def computing_target(self, group: G) -> Generator[None, None, dict[str, T]]:
        """Compute the target of all members; yields after each small piece of work."""

    def store(self, record: Record) -> tuple[bytes, bytes | None]: ...

    def finish_target(self, group_id: str) -> Iterator[Step]:
        """Yield the steps that follow once the target is installed or abandoned."""


@attrs.define(eq=False, repr=False)
class LargeTarget(Generic[G, T]):
    """The computation of one large target, as steps."""

    shard: GroupSource[G, T]
    group_id: str
    _work: Generator[None, None, Draft[TargetChange[T]] | None] | None = None
    _group: G | None = None
    """The group from which the target is computed; a recreated group is a different object."""
    _is_done: bool = False

    def steps(self) -> Iterator[Step]:
        """Yield steps until the target is installed, or the group no longer needs one."""
        while not self._is_done:
            yield self._step
        yield from self.shard.finish_target(self.group_id)

    def _step(self, moment: Moment) -> Decision:
        """Do a small piece of the work; the last piece installs the target."""
        if self._work is None:
            self._work = self._computing(moment)
        try:
            for _ in range(_STEPS_AT_ONCE):
                next(self._work)
        except StopIteration as end:
            self._work = None
            draft: Draft[TargetChange[T]] | None = end.value
            return self._install(draft)
        except Exception:
            self._is_done = True
            raise
        return NOTHING

    def _computing(self, moment: Moment) -> Generator[None, None, Draft[TargetChange[T]] | None]:
        group = self.shard.groups.get(self.group_id)
        if group is None or not group.members or group.assignment_epoch >= group.epoch:
            return None
        self._group = group
        epoch, former = group.epoch, dict(group.target)
        targets = yield from self.shard.computing_target(group)
        change = TargetChange(self.group_id, epoch, moment.wall_ms, targets)
        draft, records = Draft(moment.wall_ms, change), self.shard.target_records
        for member_id, target in targets.items():
            if former.get(member_id) != target:
                record = records.target_record(self.group_id, member_id, target)
                draft.add(*self.shard.store(record))
            yield
        last = records.target_epoch_record(self.group_id, epoch, moment.wall_ms)
        draft.add(*self.shard.store(last))
        return draft

    def _install(self, draft: Draft[TargetChange[T]] | None) -> Decision:
        """Return the decision that installs the target, unless the group has a newer one."""
        self._is_done = True
        group = self.shard.groups.get(self.group_id)
        if draft is None or group is None or group is not self._group:
            return NOTHING
        targets, epoch = draft.change.targets, draft.change.epoch
        if group.assignment_epoch >= epoch:
            return NOTHING
        for member_id in targets.keys() - group.members.keys():
            del targets[member_id]
            tombstone = self.shard.target_records.target_tombstone(self.group_id, member_id)
            draft.add(*self.shard.store(tombstone))
        logger.info("target computed group=%s epoch=%d", self.group_id, epoch)
        return Decision(draft=draft)
