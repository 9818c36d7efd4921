"""The records of share groups in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

A group is spread over records of several types: the group epoch, each member, the target's epoch,
each member's target, each member's current assignment, and the share partitions by the progress of
their state.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kwire.codec.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartitions,
    TopicPartitionsInfo,
)
from kwire.coordinator.decision import Opaque, Record
from kwire.group.consumer.model import LEAVE_EPOCH, MemberState, Partitions
from kwire.group.consumer.topics import Topics
from kwire.group.share.model import ShareGroup, ShareMember, SharePartitions, TopicState

VALUES: Final[dict[int, tuple[type, type, int]]] = {
    10: (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue, 0),
    11: (ShareGroupMetadataKey, ShareGroupMetadataValue, 0),
    12: (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue, 0),
    13: (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue, 0),
    14: (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue, 0),
    15: (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue, 0),
}
"""Key class, value class and the version in which values are written, by key type."""
UNKNOWN_NAME: Final = "<UNKNOWN>"
"""The name of a topic that is no longer in the metadata."""

_TargetTopic = ShareGroupTargetAssignmentMemberValue.TopicPartition


# Writing


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ShareGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ShareMember) -> Record:
    """Return the record of a member, without its assignment."""
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
    )
    return Record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def target_record(group_id: str, member_id: str, partitions: Partitions) -> Record:
    topics = [
        _TargetTopic(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in partitions.items()
    ]
    value = ShareGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return Record(
        ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value
    )


def target_tombstone(group_id: str, member_id: str) -> Record:
    return Record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id))


def target_epoch_record(group_id: str, epoch: int, computed_ms: int) -> Record:
    value = ShareGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=computed_ms
    )
    return Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_record(group_id: str, member: ShareMember) -> Record:
    """Return the record of a member's epoch and assignment."""
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=MemberState.STABLE,
        assigned_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in member.assigned.items()
        ],
    )
    return Record(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value
    )


def partitions_record(group_id: str, partitions: SharePartitions, topics: Topics) -> Record:
    """Return the record of the share partitions; ``topics`` has the names of deleting topics."""
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_topic_states(partitions.initializing),
        initialized_topics=_topic_states(partitions.initialized),
        deleting_topics=[
            TopicInfo(topic_id=topic_id, topic_name=topics.name_of(topic_id) or UNKNOWN_NAME)
            for topic_id in sorted(partitions.deleting)
        ],
    )
    return Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def _topic_states(states: Mapping[bytes, TopicState]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in states.items()
    ]


def member_tombstones(group_id: str, member_id: str) -> tuple[Record, ...]:
    """Return the tombstones of a member, in the order in which Kafka can replay them."""
    return (
        Record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)),
        target_tombstone(group_id, member_id),
        Record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id)),
    )


def group_tombstones(group_id: str) -> Iterator[Record]:
    """Yield the tombstones of a group without members, in the order that Kafka can replay."""
    yield Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id))
    yield Record(ShareGroupStatePartitionMetadataKey(group_id=group_id))
    yield Record(ShareGroupMetadataKey(group_id=group_id))


# Applying


def apply(groups: dict[str, ShareGroup], record: Record) -> None:
    """Apply a record: a value creates its group if needed; a tombstone of the epoch removes it."""
    key, value = record.key, record.value
    group = groups.get(key.group_id)
    if group is None:
        if value is None:
            return
        group = groups[key.group_id] = ShareGroup(key.group_id)
    if value is None and isinstance(key, ShareGroupMetadataKey):
        del groups[key.group_id]
    elif value is None:
        _apply_tombstone(group, key)
    else:
        _apply_value(group, key, value)


def _apply_tombstone(group: ShareGroup, key: Opaque) -> None:
    match key:
        case ShareGroupMemberMetadataKey():
            group.apply_removal(key.member_id)
        case ShareGroupTargetAssignmentMetadataKey():
            group.assignment_epoch, group.assignment_ms = LEAVE_EPOCH, 0
        case ShareGroupTargetAssignmentMemberKey():
            group.apply_target_removal(key.member_id)
        case ShareGroupCurrentMemberAssignmentKey() if key.member_id in group.members:
            member = group.members[key.member_id]
            group.apply_member(
                member._replace(epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={})
            )
        case ShareGroupStatePartitionMetadataKey():
            group.apply_partitions(None)


def _apply_value(group: ShareGroup, key: Opaque, value: Opaque) -> None:
    match key:
        case ShareGroupMetadataKey():
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case ShareGroupMemberMetadataKey():
            group.apply_member(_with_metadata(_member(group, key.member_id), value))
        case ShareGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch
            group.assignment_ms = value.assignment_timestamp
        case ShareGroupTargetAssignmentMemberKey():
            group.apply_target({key.member_id: _read_partitions(value.topic_partitions)})
        case ShareGroupCurrentMemberAssignmentKey():
            group.apply_member(_with_partitions(_member(group, key.member_id), value))
        case ShareGroupStatePartitionMetadataKey():
            group.apply_partitions(_read_states(value))


def _member(group: ShareGroup, member_id: str) -> ShareMember:
    return group.members.get(member_id) or ShareMember(member_id)


def _with_metadata(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    return member._replace(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def _with_partitions(
    member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue
) -> ShareMember:
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=_read_partitions(value.assigned_partitions),
    )


def _read_partitions(topics: Iterable[_TargetTopic | TopicPartitions]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def _read_states(value: ShareGroupStatePartitionMetadataValue) -> SharePartitions:
    def read(topics: Iterable[TopicPartitionsInfo]) -> dict[bytes, TopicState]:
        return {t.topic_id: TopicState(t.topic_name, frozenset(t.partitions)) for t in topics}

    return SharePartitions(
        initializing=read(value.initializing_topics),
        initialized=read(value.initialized_topics),
        deleting=frozenset(topic.topic_id for topic in value.deleting_topics),
    )
