"""The share group (KIP-932): its members, its target assignment and its share partitions.

Only applying a record changes a group, so a replayed group equals a live one. A member is an
immutable value.

The epochs are those of consumer groups: the group epoch increases when the input of the assignment
changes, the assignment epoch is the group epoch of the target, and a member's epoch is the
assignment epoch that the member has reached. Several members may have the same partition, so a
member moves to its target at once, without waiting for others.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import ClassVar, Final, NamedTuple

import attrs

from kwire.group.assigned import AssignedGroup
from kwire.group.consumer.model import Partitions
from kwire.group.model import SHARE

NOTHING: Final[Partitions] = {}


class ShareGroupState(Enum):
    """The state of a group, with the names that Kafka's tools print."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareMember(NamedTuple):
    """One member of a share group."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """The names of the topics that the member subscribes to."""
    assigned: Partitions = NOTHING

    def move_to(self, epoch: int) -> "ShareMember":
        """Return the member in another epoch; the current epoch becomes the previous one."""
        return self._replace(epoch=epoch, previous_epoch=self.epoch)


class TopicState(NamedTuple):
    """Partitions of one topic."""

    name: str
    partitions: frozenset[int]


class SharePartitions(NamedTuple):
    """The share partitions of a group by the progress of their state, by topic id."""

    initializing: Mapping[bytes, TopicState] = {}
    """The state is being initialized; members do not get these partitions yet."""
    initialized: Mapping[bytes, TopicState] = {}
    deleting: frozenset[bytes] = frozenset()
    """Topics whose state is being deleted."""


@attrs.define(eq=False, repr=False)
class ShareGroup(AssignedGroup[ShareMember, Partitions]):
    """One share group; its persisted state is changed only by the `apply` methods."""

    kind: ClassVar = SHARE
    partitions: SharePartitions | None = None
    """None while the log has no record of share partitions."""
    by_name: dict[str, int] = attrs.field(factory=dict)
    """The number of members that subscribe to a topic."""
    initializing_ms: int | None = None
    """The wall-clock time of the last change of the share partitions' state; in memory only.

    None after a load, because the previous coordinator no longer initializes them.
    """
    complete_version: object = None
    """The version of the topics for which all partitions are initialized; in memory only.

    None after a change of subscriptions or share partitions.
    """
    _has_unassigned: bool | None = attrs.field(default=None, init=False)
    """The last result of :meth:`has_unassigned`; None after a change."""

    # Reading

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def has_unassigned(self) -> bool:
        """Return whether a subscribed topic has initialized partitions that no member has."""
        if self._has_unassigned is None:
            self._has_unassigned = self._find_unassigned()
        return self._has_unassigned

    def _find_unassigned(self) -> bool:
        initialized = {} if self.partitions is None else self.partitions.initialized
        if not initialized or not self.by_name:
            return False
        assigned: dict[bytes, set[int]] = {}
        for partitions in self.target.values():
            for topic_id, numbers in partitions.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        return any(
            topic.name in self.by_name and assigned.get(topic_id, set()) != topic.partitions
            for topic_id, topic in initialized.items()
        )

    # Applying records

    def apply_member(self, member: ShareMember) -> None:
        """Add a member, or replace it."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._count(old.topics, -1)
        self.members[member.member_id] = member
        self._count(member.topics, 1)

    def apply_removal(self, member_id: str) -> None:
        """Remove a member."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.topics, -1)

    def apply_target(self, targets: Mapping[str, Partitions]) -> None:
        self.target.update(targets)
        self._has_unassigned = None

    def apply_target_removal(self, member_id: str) -> None:
        self.target.pop(member_id, None)
        self._has_unassigned = None

    def apply_partitions(self, partitions: SharePartitions | None) -> None:
        """Replace the persisted state of the share partitions."""
        self.partitions = partitions
        self._has_unassigned = self.complete_version = None

    def _count(self, topics: Iterable[str], step: int) -> None:
        self._has_unassigned = self.complete_version = None
        for name in topics:
            count = self.by_name.get(name, 0) + step
            if count:
                self.by_name[name] = count
            else:
                del self.by_name[name]
