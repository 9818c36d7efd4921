"""A group whose coordinator assigns partitions or tasks: a consumer, share or streams group.

Only applying a record changes a group, so a replayed group equals a live one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import attrs

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidRequest,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)

FIRST_EPOCH: Final = 1
"""The epoch of a new group, and of its empty target."""


class Member(Protocol):
    """A member of any kind of group."""

    @property
    def epoch(self) -> int: ...


M = TypeVar("M", bound=Member)
T = TypeVar("T")
"""The part of a target that one member gets: partitions or tasks."""


@attrs.define(eq=False, repr=False)
class AssignedGroup(Generic[M, T]):
    """One group; ``M`` is a member, ``T`` its part of the target."""

    kind: ClassVar[str]
    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """The hash of the metadata of the group's topics at the last group epoch."""
    assignment_epoch: int = FIRST_EPOCH
    assignment_ms: int = 0
    """The wall-clock time at which the target was computed; 0 before the first time."""
    members: dict[str, M] = attrs.field(factory=dict)
    target: dict[str, T] = attrs.field(factory=dict)
    """The partitions or tasks that each member should get, by member id."""
    checked_version: object = None
    """The version of the topics when the metadata hash was last compared; in memory only."""

    def require_member(self, member_id: str) -> M:
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def has_recent_target(self, interval_ms: int, now_ms: int) -> bool:
        """Return whether the target is younger than the interval between two targets.

        A target from the future is treated as old, because the wall clock was set back.
        """
        since_ms = self.assignment_ms
        return bool(since_ms) and 0 <= now_ms - since_ms < interval_ms

    def apply_target(self, targets: Mapping[str, T]) -> None:
        """Set the targets of some members."""
        self.target.update(targets)

    def fencing(self, member: Member, epoch: int) -> FencedMemberEpoch:
        """Return the error for a heartbeat whose epoch is not the member's."""
        relation = "greater" if epoch > member.epoch else "smaller"
        return FencedMemberEpoch(
            f"The {self.kind} group member has a {relation} member epoch ({epoch}) than the one "
            f"known by the group coordinator ({member.epoch}). The member must abandon all its "
            "partitions and rejoin."
        )


@attrs.define(eq=False, repr=False)
class CommittingGroup(AssignedGroup[M, T], ABC):
    """A group whose members commit offsets: a consumer group or a streams group.

    A commit from an older epoch is accepted for partitions that were assigned before or in that
    epoch and are still the member's: the member may not have received its new epoch yet (KIP-1251).
    """

    stable_counts: dict[int, int] = attrs.field(factory=dict)
    """The number of stable members, by member epoch."""

    @abstractmethod
    def assigned_since(self, member: M, topic: str, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which a member got a partition; None if it is not the member's."""

    def is_classic(self, member: M) -> bool:
        """Return whether the member uses the classic protocol."""
        return False

    @abstractmethod
    def index_owners(self) -> None:
        """Set the owners of all partitions from the members as they are after a replay.

        A replay leaves out records that others of the same key supersede, such as the removal of a
        member that rejoined later. Until its last record is applied, that member seems to own what
        another one has got meanwhile.
        """

    def check_commit(self, request: OffsetCommitRequest) -> None:
        """Reject a commit by a client that is not a member, or in an epoch that is over.

        If the group has no members, any client may commit without an epoch.
        """
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        member = self.require_member(request.member_id)
        if not self.is_classic(member) and not request.knows_member_epochs:
            raise UnsupportedVersion
        if epoch == member.epoch:
            return
        if epoch > member.epoch:
            raise self._stale(member, f"Member epoch {epoch} is newer than {member.epoch}.")
        for topic in request.topics:
            for partition in topic.partitions:
                name, number = topic.name, partition.partition_index
                since = self.assigned_since(member, name, topic.topic_id, number)
                if since is None:
                    raise self._stale(member, f"Partition {name}-{number} is not the member's.")
                if epoch < since:
                    text = f"Member epoch {epoch} is older than partition {name}-{number}: {since}."
                    raise self._stale(member, text)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Reject a fetch of offsets by a member whose epoch is not the current one.

        A client that names no member, such as a tool, may always fetch.
        """
        if member_id is None and epoch < 0:
            return
        member = self.require_member(member_id or "")
        if epoch != member.epoch:
            raise self._stale(member, f"Member epoch {epoch} is not {member.epoch}.")

    def _stale(self, member: M, text: str) -> KafkaError:
        """Return the error for an outdated epoch, which depends on the member's protocol."""
        return IllegalGeneration(text) if self.is_classic(member) else StaleMemberEpoch(text)


def check_filled(value: str | None, name: str) -> None:
    """Reject a field of a heartbeat that is present but blank."""
    if value is not None and not value.strip():
        raise InvalidRequest(f"{name} can't be empty.")
