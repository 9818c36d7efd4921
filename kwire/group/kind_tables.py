"""The groups of one kind in one partition of `__consumer_offsets`, and their targets.

The modules that decide on a member read :class:`KindTables`; the subclass of each kind, which
decides on requests, imports those modules.

A small group's target is computed within the decision that changed the group, as in Kafka. That of
a large group is computed in slices, as the steps of that decision; until it is installed, members
follow the last target. It is installed as the target of the group epoch from which it was computed,
unless there is a newer target by then, and without members that have left since then.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import attrs

from kwire.coordinator.decision import NOTHING, Decision, Moment, Record, Step
from kwire.coordinator.draft import Draft
from kwire.group.assigned import AssignedGroup, M, T
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Adoption, DecisionBuilder
from kwire.group.settings import GroupSettings

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""The largest number of members and partitions of a target that is computed in the decision."""
_STEPS_AT_ONCE: Final = 16

T_contra = TypeVar("T_contra", contravariant=True)


class TargetChange(NamedTuple, Generic[T]):
    """A target that was computed in slices; it is applied after it is written."""

    group_id: str
    epoch: int
    computed_ms: int
    targets: dict[str, T]


class TargetRecords(Protocol[T_contra]):
    """The functions that build the records of a target, for one kind of group."""

    def target_record(self, group_id: str, member_id: str, target: T_contra, /) -> Record: ...

    def target_tombstone(self, group_id: str, member_id: str) -> Record: ...

    def target_epoch_record(self, group_id: str, epoch: int, computed_ms: int) -> Record: ...


def changed_targets(
    records: TargetRecords[T],
    group: AssignedGroup[M, T],
    targets: Mapping[str, T],
    epoch: int,
    now_ms: int,
) -> Iterator[Record]:
    """Yield the records of the targets that have changed, then the record of the epoch."""
    for member_id, target in targets.items():
        if group.target.get(member_id) != target:
            yield records.target_record(group.group_id, member_id, target)
    yield records.target_epoch_record(group.group_id, epoch, now_ms)


# Any: the groups of each kind have members and targets of their own types.
AnyAssignedGroup: TypeAlias = AssignedGroup[Any, Any]
G = TypeVar("G", bound=AnyAssignedGroup)
S = TypeVar("S")
"""The settings of one group."""


@attrs.define(eq=False, repr=False)
class KindTables(ABC, Generic[G, T, S]):
    """The groups of one kind in one partition of `__consumer_offsets`."""

    settings: Callable[[], GroupSettings]
    settings_of: Callable[[str], S]
    """Returns the settings of a group, by its id."""
    topics: Callable[[], Topics]
    """Returns the topics in the newest metadata."""
    store: Callable[[Record], tuple[bytes, bytes | None]]
    """Encodes a record's key and value."""
    groups: dict[str, G] = attrs.field(factory=dict, init=False)
    _computing: set[str] = attrs.field(factory=set, init=False)
    """The groups whose large target is being computed."""

    # Records

    def apply_target(self, change: TargetChange[T]) -> None:
        """Apply the records of a large target."""
        group = self.groups[change.group_id]
        group.apply_target(change.targets)
        group.assignment_epoch, group.assignment_ms = change.epoch, change.computed_ms

    # Targets

    @property
    @abstractmethod
    def target_records(self) -> TargetRecords[T]:
        """The functions that build the records of a target."""

    @abstractmethod
    def computing_target(self, group: G) -> Generator[None, None, dict[str, T]]:
        """Compute the target of all members; yields after each small piece of work."""

    def is_computing(self, group_id: str) -> bool:
        """Return whether a large target of the group is being computed."""
        return group_id in self._computing

    def build(
        self,
        builder: DecisionBuilder,
        group_id: str,
        adoption: Adoption,
        steps: Iterable[Step] = (),
        *,
        starts_target: bool,
    ) -> Decision:
        """Return the decision; with ``starts_target``, it starts to compute a large target."""
        if not starts_target:
            return builder.build(adoption, steps=steps)
        starting = partial(self._computing.add, group_id)
        steps = chain(steps, LargeTarget(self, group_id).steps())
        return builder.build(adoption, starting, steps=steps)

    def finish_target(self, group_id: str) -> Iterator[Step]:
        """Yield the steps that follow once a large target is installed or abandoned."""
        self._computing.discard(group_id)
        return iter(())

    # Deadlines

    def on_loaded(self) -> Iterator[Step]:
        """Yield the steps after a load, which start all deadlines."""
        yield from [partial(self._wait_for_members, group_id) for group_id in self.groups]

    @abstractmethod
    def _wait_for_members(self, group_id: str, moment: Moment) -> Decision:
        """Start the deadlines of a group's members after a load."""


@attrs.define(eq=False, repr=False)
class LargeTarget(Generic[G, T, S]):
    """The computation of one large target, as steps."""

    shard: KindTables[G, T, S]
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
