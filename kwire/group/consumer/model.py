"""The consumer group (KIP-848): its members, its target assignment and their epochs.

Only applying a record changes a group, so a replayed group equals a live one. A member is an
immutable value; the group keeps indexes over its members, so that no heartbeat visits all of them.

Three epochs order the changes. The group epoch increases when the input of the assignment changes.
The assignment epoch is the group epoch for which the target was computed. A member's epoch is the
assignment epoch that the member has reached; it increases only after the member has given up the
partitions that the target takes away.
"""

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import attrs

from kwire.errors import FencedInstanceId, UnknownMemberId
from kwire.group.assigned import FIRST_EPOCH, CommittingGroup

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
Owned = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which it was assigned to its member."""

NOTHING: Final[Owned] = {}
LEAVE_EPOCH: Final = -1
"""The member epoch with which a member leaves."""
LEAVE_STATIC_EPOCH: Final = -2
"""The member epoch with which a static member leaves temporarily."""

K = TypeVar("K", bound=Hashable)


class MemberState(IntEnum):
    """A member's progress towards its target assignment, with the numbers of the records."""

    STABLE = 0
    UNREVOKED = 1
    """The member has to give up partitions."""
    UNRELEASED = 2
    """Other members still have to give up partitions that this member waits for."""
    UNKNOWN = 127


class ConsumerGroupState(Enum):
    """The state of a group, with the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicMember(NamedTuple):
    """The part of a member that only members of the classic protocol have."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol names in order of preference, each with the member's subscription."""


class ConsumerMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: int = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """The names of the topics that the member subscribes to."""
    regex: str | None = ""
    """The regular expression that the member subscribes to; empty or None without one."""
    assignor: str | None = None
    """The server's assignor that the member prefers."""
    assigned: Owned = NOTHING
    revoking: Owned = NOTHING
    """Partitions that the member still owns, but has to give up."""
    classic: ClassicMember | None = None
    """Set for a member that uses the classic protocol."""

    @property
    def preferences(self) -> tuple[object, ...]:
        """All that decides what the member is to be assigned, and how; most changes keep it."""
        return self.topics, self.regex, self.assignor, self.classic

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has reached the target assignment of this epoch."""
        return self.state == MemberState.STABLE and self.epoch == epoch

    # Any: the types of the fields.
    def move_to(self, epoch: int, **changes: Any) -> "ConsumerMember":
        """Return the member in another epoch; the current epoch becomes the previous one.

        ``changes`` are other fields that change with the epoch.
        """
        return self._replace(epoch=epoch, previous_epoch=self.epoch, **changes)


class ResolvedRegex(NamedTuple):
    """The topics that matched a regular expression when it was last resolved."""

    topics: frozenset[str]
    version: int
    """The metadata offset at which it was resolved."""
    timestamp_ms: int


@attrs.define(eq=False, repr=False)
class ConsumerGroup(CommittingGroup[ConsumerMember, Partitions]):
    """One consumer group, which only its `apply` methods and :meth:`adopt` change."""

    kind: ClassVar = "consumer"
    instances: dict[str, str] = attrs.field(factory=dict)
    """Member ids of the static members, by instance id."""
    regexes: dict[str, ResolvedRegex] = attrs.field(factory=dict)
    has_partition_metadata: bool = False
    """True if the log has a record of partition metadata, which older releases wrote."""
    by_name: dict[str, int] = attrs.field(factory=dict)
    """The number of members that subscribe to a topic by its name."""
    by_regex: dict[str, int] = attrs.field(factory=dict)
    """The number of resolved regular expressions that match a topic."""
    regex_members: dict[str, int] = attrs.field(factory=dict)
    """The number of members that subscribe to a regular expression."""
    assignors: dict[str, int] = attrs.field(factory=dict)
    """The number of members that prefer an assignor."""
    classic_count: int = 0
    """The number of members that use the classic protocol."""
    classic_protocols: dict[str, int] = attrs.field(factory=dict)
    """The number of such members that support a protocol, by its name."""
    owner_epochs: dict[bytes, dict[int, int]] = attrs.field(factory=dict)
    """The epoch of the member that owns a partition, by topic id and partition."""
    rejoining: set[str] = attrs.field(factory=set)
    """Members of the classic protocol that were asked to rejoin; in memory only."""
    revision: int = 0
    """The number of changes that were applied; in memory only."""

    # Reading

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if self.stable_counts.get(self.assignment_epoch, 0) < len(self.members):
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def has_target(self) -> bool:
        """True if there is a target that members may move to.

        A group that was upgraded before its first generation has the epoch 0, with which a member
        would join again.
        """
        return bool(self.target) and self.assignment_epoch >= FIRST_EPOCH

    @property
    def topics(self) -> set[str]:
        """The names of all subscribed topics."""
        return self.by_name.keys() | self.by_regex.keys()

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.by_name or topic in self.by_regex

    def is_classic(self, member: ConsumerMember) -> bool:
        return member.classic is not None

    def assigned_since(
        self, member: ConsumerMember, topic: str, topic_id: bytes, partition: int
    ) -> int | None:
        for owned in (member.assigned, member.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None or instance_id not in self.instances:
            return None
        return self.members.get(self.instances[instance_id])

    def require_static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member; raises UnknownMemberId, or FencedInstanceId for another id."""
        member = self.static_member(instance_id)
        if member is None:
            raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise FencedInstanceId(
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}."
            )
        return member

    def owner_epoch(self, topic_id: bytes, partition: int) -> int:
        """Return the epoch of the member that owns a partition; -1 if nobody owns it."""
        return self.owner_epochs.get(topic_id, {}).get(partition, -1)

    def subscriptions(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of a member's topics, including those that its expression matches."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    # Applying records

    def apply_target(self, targets: Mapping[str, Partitions]) -> None:
        self.revision += 1
        self.target.update(targets)

    def apply_member(self, member: ConsumerMember) -> None:
        """Add a member, or replace it."""
        old = self.members.get(member.member_id)
        if old is None or old.preferences != member.preferences:
            if old is not None:
                self._count_preferences(old, -1)
            self._count_preferences(member, 1)
        if old is not None:
            self._count_progress(old, -1)
            if old.assigned is not member.assigned or old.revoking is not member.revoking:
                self._release(old)
        self.members[member.member_id] = member
        self._count_progress(member, 1)
        self._own(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id

    def apply_removal(self, member_id: str) -> None:
        """Remove a member."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count_preferences(member, -1)
        self._count_progress(member, -1)
        self._release(member)
        if self.instances.get(member.instance_id or "") == member_id:
            del self.instances[member.instance_id or ""]

    def apply_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Set or remove the topics that match a regular expression."""
        old = self.regexes.pop(regex, None)
        if old is not None:
            _add_to(self.by_regex, old.topics, -1)
        if resolved is not None:
            self.regexes[regex] = resolved
            _add_to(self.by_regex, resolved.topics, 1)

    def _count_preferences(self, member: ConsumerMember, step: int) -> None:
        """Add ``step`` to the counters of the member's :attr:`ConsumerMember.preferences`."""
        _add_to(self.by_name, member.topics, step)
        if member.regex:
            _add_to(self.regex_members, (member.regex,), step)
        if member.assignor is not None:
            _add_to(self.assignors, (member.assignor,), step)
        if member.classic is not None:
            self.classic_count += step
            _add_to(self.classic_protocols, [name for name, _ in member.classic.protocols], step)

    def _count_progress(self, member: ConsumerMember, step: int) -> None:
        if member.state == MemberState.STABLE:
            _add_to(self.stable_counts, (member.epoch,), step)

    def _own(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                epochs = self.owner_epochs.setdefault(topic_id, {})
                epochs.update(dict.fromkeys(partitions, member.epoch))

    def index_owners(self) -> None:
        self.owner_epochs = {}
        for member in self.members.values():
            self._own(member)

    def _release(self, member: ConsumerMember) -> None:
        """Forget the partitions that a member owned, except those that another member owns now.

        The replay of a compacted log may apply the records of two members in the other order.
        """
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                epochs = self.owner_epochs.get(topic_id, {})
                for partition in partitions:
                    if epochs.get(partition) == member.epoch:
                        del epochs[partition]
                if not epochs:
                    self.owner_epochs.pop(topic_id, None)


def _add_to(counts: dict[K, int], keys: Iterable[K], step: int) -> None:
    """Add ``step`` to the count of each key; keys whose count becomes 0 are removed."""
    for key in keys:
        count = counts.get(key, 0) + step
        if count:
            counts[key] = count
        else:
            counts.pop(key, None)
