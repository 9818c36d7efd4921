"""The members that may commit and fetch offsets of a consumer group, by their epochs.

A commit from an older epoch is accepted for partitions that were assigned before or in that epoch
and are still the member's: the member may not have received its new epoch yet (KIP-1251).
"""

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.errors import (
    IllegalGeneration,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from kwire.group.consumer.model import ConsumerGroup, ConsumerMember


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> None:
    """Reject a commit by a client that is not a member, or in an epoch that is over.

    If the group has no members, any client may commit without an epoch.
    """
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return
    member = group.require_member(request.member_id)
    if member.classic is None and not request.knows_member_epochs:
        raise UnsupportedVersion
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise _stale(member, f"Received member epoch {epoch} is newer than {member.epoch}.")
    for topic in request.topics:
        for partition in topic.partitions:
            number = partition.partition_index
            assigned = member.assignment_epoch(topic.topic_id, number)
            if assigned is None:
                raise _stale(member, f"Partition {topic.name}-{number} is not the member's.")
            if epoch < assigned:
                raise _stale(
                    member,
                    f"Received member epoch {epoch} is older than assignment epoch {assigned} of "
                    f"partition {topic.name}-{number}.",
                )


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Reject a fetch by a member whose epoch is not the current one.

    A client that names no member, such as a tool, may always fetch.
    """
    if member_id is None and epoch < 0:
        return
    member = group.members.get(member_id or "")
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    if epoch != member.epoch:
        raise _stale(member, f"Received member epoch {epoch} is not {member.epoch}.")


def _stale(member: ConsumerMember, text: str) -> KafkaError:
    """Return the error for an outdated epoch, which depends on the member's protocol."""
    return StaleMemberEpoch(text) if member.classic is None else IllegalGeneration(text)
