"""The members that may commit and fetch offsets of a streams group, by their epochs.

A commit from an older epoch is accepted for partitions whose task was assigned before or in that
epoch and is still the member's: the member may not have received its new epoch yet.
"""

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.errors import StaleMemberEpoch, UnknownMemberId, UnsupportedVersion
from kwire.group.streams.model import StreamsGroup, StreamsMember


def check_commit(group: StreamsGroup, request: OffsetCommitRequest) -> None:
    """Reject a commit by a client that is not a member, or in an epoch that is over.

    If the group has no members, any client may commit without an epoch.
    """
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return
    member = group.require_member(request.member_id)
    if not request.knows_member_epochs:
        raise UnsupportedVersion
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise StaleMemberEpoch(
            f"Received member epoch {epoch} is newer than current member epoch {member.epoch}."
        )
    for topic in request.topics:
        for partition in topic.partitions:
            _check_task(group, member, epoch, topic.name, partition.partition_index)


def _check_task(
    group: StreamsGroup, member: StreamsMember, epoch: int, topic: str, number: int
) -> None:
    """Reject a commit from an older epoch unless the member had the partition's task by then."""
    sources = {} if group.topology is None else group.topology.sources
    subtopology_id = sources.get(topic)
    if subtopology_id is None:
        raise StaleMemberEpoch(f"Topic {topic} is not in the topology.")
    for owned in (member.assigned, member.revoking):
        assigned = owned.active.get(subtopology_id, {}).get(number)
        if assigned is None:
            continue
        if epoch >= assigned:
            return
        raise StaleMemberEpoch(
            f"Received member epoch {epoch} is older than assignment epoch {assigned} for task "
            f"{subtopology_id}-{number}."
        )
    raise StaleMemberEpoch(
        f"Task {subtopology_id}-{number} is not assigned or pending revocation for member."
    )


def check_fetch(group: StreamsGroup, member_id: str | None, epoch: int) -> None:
    """Reject a fetch by a member whose epoch is not the current one.

    A client that names no member, such as a tool, may always fetch.
    """
    if member_id is None and epoch < 0:
        return
    member = group.members.get(member_id or "")
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    if epoch != member.epoch:
        raise StaleMemberEpoch(
            f"The received member epoch {epoch} does not match the expected member epoch "
            f"{member.epoch}."
        )
