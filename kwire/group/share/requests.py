"""Requests to share groups, as decisions on a :class:`~kwire.group.shard.GroupShard`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kwire.codec.messages.share_group_describe import (
    Assignment,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest as Request
from kwire.coordinator.decision import Answer, Decision, Moment
from kwire.errors import GroupIdNotFound, NonEmptyGroup
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.shard import GroupShard
from kwire.group.share import initialization
from kwire.group.share.heartbeat import JOIN_EPOCH
from kwire.group.share.model import ShareGroup, ShareMember, SharePartitions, TopicState

DescribedGroup = ShareGroupDescribeResponse.DescribedGroup

Numbers = Mapping[bytes, Iterable[int]]
"""Partitions by topic id."""
Offsets = Mapping[bytes, Mapping[int, int]]
"""Start offsets by topic id and partition."""


def _group_of(shard: GroupShard, group_id: str) -> ShareGroup | None:
    """Return the share group; None if the id is unused. Raises GroupIdNotFound for another kind."""
    group = shard.share_group(group_id)
    if group is None and shard.has_group(group_id):
        raise shard.no_group(group_id, "share")
    return group


def _existing(shard: GroupShard, group_id: str) -> ShareGroup:
    group = shard.share_group(group_id)
    if group is None:
        raise shard.no_group(group_id, "share")
    return group


def _check_empty(group: ShareGroup) -> None:
    if group.members:
        raise NonEmptyGroup("The group is not empty.")


# Members


def heartbeat(
    shard: GroupShard, request: Request, client: Client, moment: Moment, ticket: int
) -> Decision:
    """Decide on a heartbeat; the first one creates the group."""
    group_id = request.group_id
    group = _group_of(shard, group_id)
    if group is None:
        if request.member_epoch < JOIN_EPOCH:
            raise shard.no_group(group_id, "share")
        if request.member_epoch > JOIN_EPOCH:
            raise GroupIdNotFound(f"Share group {group_id} not found.")
        group = ShareGroup(group_id)
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    return shard.share.heartbeat(group, request, client, builder)


# Descriptions


def describe(shard: GroupShard, group_id: str) -> tuple[DescribedGroup, list[ShareMember]]:
    """Describe a group; its members are returned separately."""
    group = _existing(shard, group_id)
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=shard.share.settings_of(group_id).assignor,
        members=[],
    )
    return described, list(group.members.values())


def describe_member(member: ShareMember, topics: Topics) -> DescribedGroup.Member:
    """Describe a member with its assignment, without topics that no longer exist."""
    return DescribedGroup.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
                for topic_id, numbers in member.assigned.items()
                if (name := topics.name_of(topic_id)) is not None
            ]
        ),
    )


def read_initialized(shard: GroupShard, group_id: str) -> dict[bytes, frozenset[int]]:
    """Return the partitions whose state is initialized, none for an unknown group."""
    group = shard.share_group(group_id)
    if group is None or group.partitions is None:
        return {}
    return {t: state.partitions for t, state in group.partitions.initialized.items()}


# Initialization


def finish_initialization(
    shard: GroupShard, group_id: str, numbers: Numbers, moment: Moment, ticket: int
) -> Decision:
    """Record that the state of share partitions is initialized."""
    group = shard.share_group(group_id)
    if group is None:
        return Decision(answers=(Answer(ticket, None),))
    builder = _answering(shard, moment, ticket)
    current = initialization.finish(group.partitions, numbers, shard.topics())
    return shard.share.write_partitions(builder, group_id, current)


def give_up_initialization(
    shard: GroupShard, group_id: str, numbers: Numbers, moment: Moment, ticket: int
) -> Decision:
    """Record that the initialization of share partitions has failed."""
    group = shard.share_group(group_id)
    current = None if group is None else group.partitions
    if current is None or not current.initializing:
        return Decision(answers=(Answer(ticket, None),))
    builder = _answering(shard, moment, ticket)
    return shard.share.write_partitions(builder, group_id, initialization.give_up(current, numbers))


def _answering(
    shard: GroupShard, moment: Moment, ticket: int, reply: object = None
) -> DecisionBuilder:
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    builder.answer(ticket, reply)
    return builder


# Offsets


class OffsetAlteration(NamedTuple):
    """Start offsets that the persister must write, as new states."""

    epoch: int
    offsets: Offsets


def begin_alteration(
    shard: GroupShard, group_id: str, offsets: Offsets, moment: Moment, ticket: int
) -> Decision:
    """Record that share partitions get new start offsets; answer with the states to write.

    The group is created if it does not exist. Raises GroupIdNotFound or NonEmptyGroup.
    """
    group = _group_of(shard, group_id) or ShareGroup(group_id)
    _check_empty(group)
    builder = _answering(shard, moment, ticket, OffsetAlteration(group.epoch, offsets))
    if not offsets:
        return builder.build()
    topics = shard.topics()
    states = {
        topic_id: TopicState(topics.name_of(topic_id) or "", frozenset(numbers))
        for topic_id, numbers in offsets.items()
    }
    current = initialization.begin(group.partitions, states)
    return shard.share.write_partitions(builder, group_id, current)


class Deletion(NamedTuple):
    """The topics of a DeleteShareGroupOffsets whose state has to be deleted."""

    numbers: Mapping[bytes, frozenset[int]]
    """Partitions by topic id."""
    without_state: frozenset[bytes] = frozenset()
    """Topics for which the group has no state."""


def begin_deletion(
    shard: GroupShard, group_id: str, topic_ids: Sequence[bytes], moment: Moment, ticket: int
) -> Decision:
    """Record that the state of topics is being deleted; answer with a :class:`Deletion`.

    Raises GroupIdNotFound or NonEmptyGroup.
    """
    group = _existing(shard, group_id)
    _check_empty(group)
    current = group.partitions
    if current is None:
        return _answering(shard, moment, ticket, Deletion({})).build()
    topics, numbers = shard.topics(), dict[bytes, frozenset[int]]()
    for topic_id in topic_ids:
        if topic_id in current.initialized:
            numbers[topic_id] = current.initialized[topic_id].partitions
        elif topic_id in current.deleting:
            numbers[topic_id] = frozenset(range(topics.partition_count(topic_id)))
    without_state = frozenset(topic_ids) - numbers.keys()
    rest = {t: state for t, state in current.initialized.items() if t not in numbers}
    builder = _answering(shard, moment, ticket, Deletion(numbers, without_state))
    current = current._replace(initialized=rest, deleting=current.deleting | numbers.keys())
    return shard.share.write_partitions(builder, group_id, current)


def finish_deletion(
    shard: GroupShard, group_id: str, topic_ids: Sequence[bytes], moment: Moment, ticket: int
) -> Decision:
    """Record that the state of topics is deleted."""
    group = shard.share_group(group_id)
    builder = _answering(shard, moment, ticket)
    if group is None or group.partitions is None:
        return builder.build()
    current = group.partitions
    current = current._replace(deleting=current.deleting - frozenset(topic_ids))
    return shard.share.write_partitions(builder, group_id, current)


def begin_group_deletion(shard: GroupShard, group_id: str, moment: Moment, ticket: int) -> Decision:
    """Record that all state of a group is being deleted; answer with its partitions by topic id.

    The answer is empty for a group without state, and for a group of another kind. Raises
    NonEmptyGroup.
    """
    group = shard.share_group(group_id)
    if group is not None:
        _check_empty(group)
    if group is None or group.partitions is None:
        return _answering(shard, moment, ticket, {}).build()
    numbers = initialization.deletable(group.partitions, shard.topics())
    builder = _answering(shard, moment, ticket, numbers)
    current = SharePartitions(deleting=frozenset(numbers))
    return shard.share.write_partitions(builder, group_id, current)
