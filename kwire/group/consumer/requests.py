"""Requests to consumer groups, as decisions on a :class:`~kwire.group.shard.GroupShard`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from kwire.codec.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeResponse,
    TopicPartitions,
)
from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest as Request,
)
from kwire.coordinator.decision import Decision, Moment, Step
from kwire.coordinator.draft import Draft
from kwire.errors import (
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    UnsupportedAssignor,
)
from kwire.group.assigned import check_filled
from kwire.group.consumer.large_migration import LargeMigration, is_large
from kwire.group.consumer.migration import Upgrade, finish_upgrade, upgrading
from kwire.group.consumer.model import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Partitions,
)
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.model import ClassicGroup, ClassicGroupState, ProtocolChange
from kwire.group.records import group_tombstone
from kwire.group.requests import end_pending
from kwire.group.shard import GroupShard

DescribedGroup = ConsumerGroupDescribeResponse.DescribedGroup
MemberAndTarget = tuple[ConsumerMember, Partitions]

_CLASSIC, _CONSUMER = 0, 1
"""The protocols of members, in descriptions."""
_JOIN_EPOCH: Final = 0


def check_heartbeat(request: Request, assignors: Sequence[str]) -> None:
    """Reject a heartbeat whose fields contradict each other."""
    epoch = request.member_epoch
    if request.must_name_member or epoch > 0 or epoch == LEAVE_EPOCH:
        check_filled(request.member_id, "MemberId")
    check_filled(request.group_id, "GroupId")
    check_filled(request.instance_id, "InstanceId")
    check_filled(request.rack_id, "RackId")
    if epoch == _JOIN_EPOCH:
        _check_join(request)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}."
        )


def _check_join(request: Request) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def heartbeat(
    shard: GroupShard,
    request: Request,
    client: Client,
    moment: Moment,
    ticket: int,
    attempts: int = 0,
) -> Decision:
    """Decide on a heartbeat; the first one creates the group.

    ``attempts`` counts the attempts that failed because a large classic group changed meanwhile.
    """
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    if not shard.has_groups:
        shard.schedule_expiry(builder)
    if not request.member_id and request.member_epoch == _JOIN_EPOCH:
        request.member_id = shard.new_id()
    classic = shard.groups.get(request.group_id)
    if (
        classic is not None
        and request.member_epoch == _JOIN_EPOCH
        and is_large(len(classic.members), attempts)
    ):
        return Decision(steps=_large_upgrade(shard, classic, request, client, ticket, attempts))
    group = _group_of(shard, builder, request)
    return shard.consumer.heartbeat(group, request, client, builder)


def _group_of(
    shard: GroupShard, builder: DecisionBuilder, request: Request
) -> ConsumerGroup | None:
    """Return the group of a heartbeat; a join may create it or convert a classic group."""
    group_id = request.group_id
    group = shard.consumer_group(group_id)
    if group is not None:
        return group
    classic, joins = shard.groups.get(group_id), request.member_epoch == _JOIN_EPOCH
    if not shard.has_group(group_id):
        return ConsumerGroup(group_id) if joins else None
    if joins and classic is not None and classic.state is ClassicGroupState.EMPTY:
        builder.records.append(group_tombstone(group_id))
        end_pending(builder, classic)
        return ConsumerGroup(group_id)
    if joins and classic is not None:
        return shard.consumer.upgrade(builder, classic)
    raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")


def _large_upgrade(
    shard: GroupShard,
    classic: ClassicGroup,
    request: Request,
    client: Client,
    ticket: int,
    attempts: int,
) -> Iterator[Step]:
    """Return the steps after which the classic group is a consumer group with the new member."""
    settings = shard.consumer.settings_of(classic.group_id)

    def install(change: Upgrade, draft: Draft[ProtocolChange], moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        finish_upgrade(builder, classic, change.group, settings)
        decision = shard.consumer.heartbeat(change.group, request, client, builder)
        draft.change.consumer = change.group
        for record in decision.records:
            draft.add(*shard.encode(record)).records.append(record)
        return decision._replace(records=(), draft=draft, otherwise=partial(_refuse, shard, ticket))

    return LargeMigration(
        shard.consumer,
        classic.group_id,
        ticket,
        lambda _: upgrading(classic, settings, shard.topics()),
        lambda: shard.groups.get(classic.group_id) is classic,
        install,
        lambda moment: heartbeat(shard, request, client, moment, ticket, attempts + 1),
    ).steps()


def _refuse(shard: GroupShard, ticket: int, error: KafkaError, moment: Moment) -> Decision:
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    builder.refuse(error)
    return builder.build()


# Descriptions


def describe(shard: GroupShard, group_id: str) -> tuple[DescribedGroup, list[MemberAndTarget]]:
    """Describe a group; return its members separately, with their targets."""
    group = shard.consumer_group(group_id)
    if group is None:
        raise shard.no_group(group_id, "consumer")
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=shard.consumer.assignor_of(group),
        members=[],
    )
    target, nothing = group.target, dict[bytes, frozenset[int]]()
    return described, [(m, target.get(m.member_id, nothing)) for m in group.members.values()]


def describe_member(
    member: ConsumerMember, target: Partitions, topics: Topics
) -> DescribedGroup.Member:
    """Describe a member; it owns partitions until it has given them up."""
    owned: dict[bytes, list[int]] = {}
    for partitions in (member.assigned, member.revoking):
        for topic_id, epochs in partitions.items():
            owned.setdefault(topic_id, []).extend(sorted(epochs))
    return DescribedGroup.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(owned, topics),
        target_assignment=_assignment({t: sorted(each) for t, each in target.items()}, topics),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(partitions: Mapping[bytes, list[int]], topics: Topics) -> Assignment:
    """Return the partitions of the topics that still exist."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for topic_id, numbers in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
