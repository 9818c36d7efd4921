"""The records of streams groups in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

A group is spread over records of several types: the group epoch, the topology, each member, the
target's epoch, each member's target, and each member's current tasks.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kwire.codec.messages.streams_group_records import Endpoint as StoredEndpoint
from kwire.codec.messages.streams_group_records import (
    KeyValue,
    LastAssignmentConfig,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    TaskIds,
)
from kwire.coordinator.decision import Opaque, Record
from kwire.group.consumer.model import LEAVE_EPOCH
from kwire.group.streams.model import MemberState, QueryEndpoint, StreamsGroup, StreamsMember
from kwire.group.streams.tasks import EpochTasks, OwnedTasks, Tasks, TaskSet
from kwire.group.streams.topology import Topology

VALUES: Final[dict[int, tuple[type, type, int]]] = {
    17: (StreamsGroupMetadataKey, StreamsGroupMetadataValue, 0),
    19: (StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue, 0),
    20: (StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue, 0),
    21: (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue, 0),
    22: (StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue, 0),
    23: (StreamsGroupTopologyKey, StreamsGroupTopologyValue, 0),
}
"""Key class, value class and the version in which values are written, by key type."""

_CurrentTasks = StreamsGroupCurrentMemberAssignmentTaskIds


# Writing


def epoch_record(
    group_id: str,
    epoch: int,
    metadata_hash: int,
    validated_epoch: int,
    configs: Mapping[str, str],
) -> Record:
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_epoch,
        last_assignment_configs=[
            LastAssignmentConfig(key=name, value=text) for name, text in sorted(configs.items())
        ],
    )
    return Record(StreamsGroupMetadataKey(group_id=group_id), value)


def topology_record(group_id: str, topology: Topology) -> Record:
    return Record(StreamsGroupTopologyKey(group_id=group_id), topology.value)


def member_record(group_id: str, member: StreamsMember) -> Record:
    """Return the record of a member, without its tasks."""
    endpoint = member.endpoint
    value = StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else StoredEndpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[KeyValue(key=name, value=text) for name, text in member.tags],
    )
    return Record(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value
    )


def target_record(group_id: str, member_id: str, tasks: TaskSet) -> Record:
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_target_tasks(tasks.active),
        standby_tasks=_target_tasks(tasks.standby),
        warmup_tasks=_target_tasks(tasks.warmup),
    )
    return Record(
        StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value
    )


def _target_tasks(tasks: Tasks) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=i, partitions=sorted(numbers))
        for i, numbers in sorted(tasks.items())
    ]


def target_tombstone(group_id: str, member_id: str) -> Record:
    return Record(StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id))


def target_epoch_record(group_id: str, epoch: int, computed_ms: int) -> Record:
    value = StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=computed_ms
    )
    return Record(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_record(group_id: str, member: StreamsMember) -> Record:
    """Return the record of a member's epoch and tasks."""
    assigned, revoking = member.assigned, member.revoking
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        active_tasks=_tasks_with_epochs(assigned.active),
        standby_tasks=_current_tasks(assigned.standby),
        warmup_tasks=_current_tasks(assigned.warmup),
        active_tasks_pending_revocation=_tasks_with_epochs(revoking.active),
        standby_tasks_pending_revocation=_current_tasks(revoking.standby),
        warmup_tasks_pending_revocation=_current_tasks(revoking.warmup),
    )
    return Record(
        StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value
    )


def _current_tasks(tasks: Tasks) -> list[_CurrentTasks]:
    return [
        _CurrentTasks(subtopology_id=i, partitions=sorted(numbers))
        for i, numbers in sorted(tasks.items())
    ]


def _tasks_with_epochs(tasks: EpochTasks) -> list[_CurrentTasks]:
    return [
        _CurrentTasks(
            subtopology_id=i,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[number] for number in sorted(epochs)],
        )
        for i, epochs in sorted(tasks.items())
    ]


def member_tombstones(group_id: str, member_id: str) -> tuple[Record, ...]:
    """Return the tombstones of a member, in the order in which Kafka can replay them."""
    return (
        Record(StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)),
        target_tombstone(group_id, member_id),
        Record(StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id)),
    )


def group_tombstones(group_id: str) -> Iterator[Record]:
    """Yield the tombstones of a group without members, in the order that Kafka can replay."""
    yield Record(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id))
    yield Record(StreamsGroupMetadataKey(group_id=group_id))
    yield Record(StreamsGroupTopologyKey(group_id=group_id))


# Applying


def apply(groups: dict[str, StreamsGroup], record: Record) -> None:
    """Apply a record: a value creates its group if needed; a tombstone of the epoch removes it."""
    key, value = record.key, record.value
    group = groups.get(key.group_id)
    if group is None:
        if value is None:
            return
        group = groups[key.group_id] = StreamsGroup(key.group_id)
    if value is None and isinstance(key, StreamsGroupMetadataKey):
        del groups[key.group_id]
    elif value is None:
        _apply_tombstone(group, key)
    else:
        _apply_value(group, key, value)


def _apply_tombstone(group: StreamsGroup, key: Opaque) -> None:
    match key:
        case StreamsGroupMemberMetadataKey():
            group.apply_removal(key.member_id)
        case StreamsGroupTargetAssignmentMetadataKey():
            group.assignment_epoch, group.assignment_ms = LEAVE_EPOCH, 0
        case StreamsGroupTargetAssignmentMemberKey():
            group.target.pop(key.member_id, None)
        case StreamsGroupCurrentMemberAssignmentKey() if key.member_id in group.members:
            member = group.members[key.member_id].move_to(LEAVE_EPOCH)
            group.apply_member(
                member._replace(
                    previous_epoch=LEAVE_EPOCH, assigned=OwnedTasks(), revoking=OwnedTasks()
                )
            )
        case StreamsGroupTopologyKey():
            group.topology = None


def _apply_value(group: StreamsGroup, key: Opaque, value: Opaque) -> None:
    match key:
        case StreamsGroupMetadataKey():
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            group.validated_epoch = value.validated_topology_epoch
            configs = value.last_assignment_configs or ()
            group.assignment_configs = {each.key: each.value for each in configs}
        case StreamsGroupTopologyKey():
            group.topology = Topology.of(value)
        case StreamsGroupMemberMetadataKey():
            group.apply_member(_with_metadata(_member(group, key.member_id), value))
        case StreamsGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch
            group.assignment_ms = value.assignment_timestamp
        case StreamsGroupTargetAssignmentMemberKey():
            group.target[key.member_id] = TaskSet(
                _read_tasks(value.active_tasks),
                _read_tasks(value.standby_tasks),
                _read_tasks(value.warmup_tasks),
            )
        case StreamsGroupCurrentMemberAssignmentKey():
            group.apply_member(_with_tasks(_member(group, key.member_id), value))


def _member(group: StreamsGroup, member_id: str) -> StreamsMember:
    return group.members.get(member_id) or StreamsMember(member_id)


def _with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = value.user_endpoint
    return member._replace(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        endpoint=None if endpoint is None else QueryEndpoint(endpoint.host, endpoint.port),
        tags=tuple(sorted((each.key, each.value) for each in value.client_tags)),
    )


def _with_tasks(
    member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue
) -> StreamsMember:
    states = MemberState.__members__.values()
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=value.state if value.state in states else MemberState.UNKNOWN,
        assigned=OwnedTasks(
            _read_epochs(value.active_tasks, value.member_epoch),
            _read_tasks(value.standby_tasks),
            _read_tasks(value.warmup_tasks),
        ),
        revoking=OwnedTasks(
            _read_epochs(value.active_tasks_pending_revocation, value.member_epoch),
            _read_tasks(value.standby_tasks_pending_revocation),
            _read_tasks(value.warmup_tasks_pending_revocation),
        ),
    )


def _read_tasks(tasks: Iterable[TaskIds | _CurrentTasks]) -> Tasks:
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks}


def _read_epochs(tasks: Iterable[_CurrentTasks], member_epoch: int) -> EpochTasks:
    """Return tasks with their epochs; records of older releases have no epochs."""
    read: dict[str, Mapping[int, int]] = {}
    for each in tasks:
        epochs = each.assignment_epochs
        if epochs is not None and len(epochs) == len(each.partitions):
            read[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
        else:
            read[each.subtopology_id] = dict.fromkeys(each.partitions, member_epoch)
    return read
