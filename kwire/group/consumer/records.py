"""The records of consumer groups in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

A group is spread over records of several types: the group epoch, each member, the target's epoch,
each member's target, each member's current assignment, and the topics of each regular expression.
Releases before 4.1 also wrote the partition metadata of the subscribed topics; like Kafka, kwire
only removes that record.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kwire.codec.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from kwire.coordinator.decision import Opaque, Record
from kwire.group.consumer.model import (
    LEAVE_EPOCH,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    Partitions,
    ResolvedRegex,
)

VALUES: Final[dict[int, tuple[type, type, int]]] = {
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
}
"""Key class, value class and the version in which values are written, by key type."""

_STATES: Final = frozenset(MemberState)
_TargetTopic = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_ClassicMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


# Writing


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> Record:
    """Return the record of a member, without the partitions that it owns."""
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if classic is None else _classic_metadata(classic),
    )
    return Record(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value
    )


def _classic_metadata(classic: ClassicMember) -> _ClassicMetadata:
    return _ClassicMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            _ClassicMetadata.ClassicProtocol(name=name, metadata=metadata)
            for name, metadata in classic.protocols
        ],
    )


def target_record(group_id: str, member_id: str, partitions: Partitions) -> Record:
    topics = [
        _TargetTopic(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in partitions.items()
    ]
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return Record(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value
    )


def target_tombstone(group_id: str, member_id: str) -> Record:
    return Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id))


def target_epoch_record(group_id: str, epoch: int, computed_ms: int) -> Record:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=computed_ms
    )
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_record(group_id: str, member: ConsumerMember) -> Record:
    """Return the record of a member's epoch and of the partitions that it owns."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_topic_partitions(member.assigned),
        partitions_pending_revocation=_topic_partitions(member.revoking),
    )
    return Record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        value,
    )


def _topic_partitions(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=(numbers := sorted(epochs)),
            assignment_epochs=[epochs[number] for number in numbers],
        )
        for topic_id, epochs in owned.items()
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> Record:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return Record(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value
    )


def regex_tombstone(group_id: str, regex: str) -> Record:
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex))


def partition_metadata_tombstone(group_id: str) -> Record:
    return Record(ConsumerGroupPartitionMetadataKey(group_id=group_id))


def member_tombstones(group_id: str, member_id: str) -> tuple[Record, ...]:
    """Return the tombstones of a member, in the order in which Kafka can replay them."""
    return (
        Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)),
        Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)),
        Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)),
    )


def group_tombstones(
    group: ConsumerGroup, joining: ConsumerMember | None = None
) -> Iterator[Record]:
    """Yield the tombstones of a whole group, in the order in which Kafka can replay them.

    ``joining`` has just replaced the static member with the same instance id.
    """
    group_id, members = group.group_id, list(group.members)
    if joining is not None and joining.instance_id is not None:
        members.remove(group.instances[joining.instance_id])
        members.append(joining.member_id)
    for member_id in members:
        yield Record(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
        )
    for member_id in members:
        yield Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id))
    yield Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))
    for member_id in members:
        yield Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id))
    for regex in list(group.regexes):
        yield regex_tombstone(group_id, regex)
    yield partition_metadata_tombstone(group_id)
    yield Record(ConsumerGroupMetadataKey(group_id=group_id))


# Applying


def apply(groups: dict[str, ConsumerGroup], record: Record) -> None:
    """Apply a record: a value creates its group if needed; a tombstone of the epoch removes it."""
    key, value = record.key, record.value
    group = groups.get(key.group_id)
    if group is None:
        if value is None:
            return
        group = groups[key.group_id] = ConsumerGroup(key.group_id)
    group.revision += 1
    if value is None and isinstance(key, ConsumerGroupMetadataKey):
        del groups[key.group_id]
    elif value is None:
        _apply_tombstone(group, key)
    else:
        _apply_value(group, key, value)


def _apply_tombstone(group: ConsumerGroup, key: Opaque) -> None:
    match key:
        case ConsumerGroupPartitionMetadataKey():
            group.has_partition_metadata = False
        case ConsumerGroupMemberMetadataKey():
            group.apply_removal(key.member_id)
        case ConsumerGroupTargetAssignmentMetadataKey():
            group.assignment_epoch, group.assignment_ms = LEAVE_EPOCH, 0
        case ConsumerGroupTargetAssignmentMemberKey():
            group.target.pop(key.member_id, None)
        case ConsumerGroupCurrentMemberAssignmentKey() if key.member_id in group.members:
            group.apply_member(_without_partitions(group.members[key.member_id]))
        case ConsumerGroupRegularExpressionKey():
            group.apply_regex(key.regular_expression, None)


def _apply_value(group: ConsumerGroup, key: Opaque, value: Opaque) -> None:
    match key:
        case ConsumerGroupCurrentMemberAssignmentKey():  # By far the most frequent one.
            group.apply_member(_with_partitions(_member(group, key.member_id), value))
        case ConsumerGroupMetadataKey():
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case ConsumerGroupPartitionMetadataKey():
            group.has_partition_metadata = True
        case ConsumerGroupMemberMetadataKey():
            group.apply_member(_with_metadata(_member(group, key.member_id), value))
        case ConsumerGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch
            group.assignment_ms = value.assignment_timestamp
        case ConsumerGroupTargetAssignmentMemberKey():
            group.target[key.member_id] = _read_target(value.topic_partitions)
        case ConsumerGroupRegularExpressionKey():
            group.apply_regex(key.regular_expression, _read_regex(value))


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


def _with_metadata(
    member: ConsumerMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerMember:
    classic = value.classic_member_metadata
    return member._replace(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMember(
            classic.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
        ),
    )


def _without_partitions(member: ConsumerMember) -> ConsumerMember:
    """Return the member without its partitions; a tombstone of the member itself follows."""
    return member._replace(epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}, revoking={})


def _with_partitions(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=value.state if value.state in _STATES else MemberState.UNKNOWN,
        assigned=_read_owned(value.assigned_partitions, value.member_epoch),
        revoking=_read_owned(value.partitions_pending_revocation, value.member_epoch),
    )


def _read_owned(topics: Iterable[TopicPartitions], member_epoch: int) -> Owned:
    """Return owned partitions; records of releases before 4.3 have no assignment epochs."""
    owned: dict[bytes, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is not None and len(epochs) == len(topic.partitions):
            owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
        else:
            owned[topic.topic_id] = dict.fromkeys(topic.partitions, max(member_epoch, 0))
    return owned


def _read_target(topics: Iterable[_TargetTopic]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


def _read_regex(value: ConsumerGroupRegularExpressionValue) -> ResolvedRegex:
    return ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
