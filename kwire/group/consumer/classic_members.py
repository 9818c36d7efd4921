"""Members of a consumer group that use the classic protocol.

For these members, a JoinGroup makes the changes that a ConsumerGroupHeartbeat would make; its
response has the member epoch as the generation. SyncGroup returns the assignment of that epoch, and
Heartbeat asks the member to rejoin when there is a newer assignment. A member that has to give up
partitions rejoins once more without them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kwire.coordinator.decision import Decision, Moment
from kwire.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kwire.group.consumer import fencing, migration
from kwire.group.consumer.embedded import read_subscription, version_of, write_assignment
from kwire.group.consumer.heartbeat import check_room, join_static
from kwire.group.consumer.large_migration import LargeMigration, is_large, large_downgrade
from kwire.group.consumer.member_update import MemberUpdate
from kwire.group.consumer.model import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from kwire.group.consumer.target import ConsumerTables
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Client, DecisionBuilder, join_error
from kwire.group.model import CONSUMER, ClassicGroup

if TYPE_CHECKING:
    from kwire.codec.messages.consumer_protocol import ConsumerProtocolSubscription


BecomesClassic = ClassicGroup | LargeMigration[migration.Downgrade] | None
"""The classic group that replaces the group, or the steps that replace it."""


class JoinAttempt(NamedTuple):
    """A JoinGroup to a consumer group, and how often it was attempted before."""

    request: JoinGroupRequest
    client: Client
    fresh_id: str
    """The id of a member that has none yet."""
    former_count: int = 0
    """The number of attempts that failed because a large group changed meanwhile."""


class OwnedByName(NamedTuple):
    """The partitions of one topic that a member claims to own in its subscription."""

    topic_id: bytes
    partitions: list[int]


def join(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    attempt: JoinAttempt,
    again: Callable[[Moment], Decision],
) -> tuple[MemberUpdate | None, BecomesClassic]:
    """Decide on a JoinGroup; return the member's update, and the classic group if it becomes one.

    ``again`` makes the next attempt if a large group changes meanwhile.
    """
    try:
        return _join(tables, builder, group, attempt, again)
    except KafkaError as error:
        builder.answer(builder.ticket, join_error(type(error)))
        return None, None


def _join(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    attempt: JoinAttempt,
    again: Callable[[Moment], Decision],
) -> tuple[MemberUpdate | None, BecomesClassic]:
    settings, request = tables.settings_of(group.group_id), attempt.request
    member_id, instance_id = request.member_id or attempt.fresh_id, request.group_instance_id
    if not settings.may_migrate:
        raise InconsistentGroupProtocol
    check_room(group, member_id, settings)
    _check_protocols(group, request)
    if not request.member_id and instance_id is None and request.knows_member_id_required:
        builder.answer(builder.ticket, join_error(MemberIdRequired, member_id))
        return None, None
    if tables.is_computing(group.group_id) and not group.has_target:
        raise RebalanceInProgress
    old, former_id = _member(group, member_id, instance_id, is_new=not request.member_id)
    subscription = _subscription(request)
    new = _with_request(old, request, attempt.client, subscription)
    update = MemberUpdate(tables, builder, group, settings, old, new, former_id)
    replaced = None if former_id is None else group.members[former_id]
    if former_id is not None:
        update.replace_static_member()
    update.write_member()
    update.follow_regex()
    update.bumps_epoch = update.has_subscription_changed
    update.bump_epoch()
    owned = _read_owned(subscription, tables.topics())
    classic: BecomesClassic = None
    if replaced is not None and migration.may_downgrade_by(group, replaced, settings):
        rebalances = group.assignment_epoch < update.epoch or not _are_reconciled(group, replaced)
        if not rebalances:
            target = group.target.get(replaced.member_id, {})
            update.move(group.assignment_epoch, target, owned)
        if is_large(len(group.members), attempt.former_count):
            classic = large_downgrade(
                tables, builder, group, (replaced,), again, update.new, rebalances=rebalances
            )
        else:
            classic = migration.downgrade(
                builder, group, (replaced,), tables.topics(), update.new, rebalances=rebalances
            )
    else:
        target_epoch, target = update.follow_epoch()
        update.move(target_epoch, target, owned)
        fencing.end_rejoin(builder, group.group_id, update.new)
        fencing.start_session(builder, group.group_id, update.new, settings)
        fencing.start_sync(builder, group.group_id, update.new)
    builder.answer(builder.ticket, _join_response(update.new))
    return update, classic


def _are_reconciled(group: ConsumerGroup, replaced: ConsumerMember) -> bool:
    """Return whether all members but the replaced one have reached the group's target."""
    epoch = group.assignment_epoch
    stable_count = group.stable_counts.get(epoch, 0) - replaced.is_reconciled_to(epoch)
    return stable_count == len(group.members) - 1


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    """Raise an error unless all members of the classic protocol support one of the protocols."""
    names = [protocol.name for protocol in request.protocols]
    count = group.classic_count
    if request.protocol_type != CONSUMER or not any(
        group.classic_protocols.get(name, 0) == count for name in names
    ):
        raise InconsistentGroupProtocol


def _subscription(request: JoinGroupRequest) -> "ConsumerProtocolSubscription":
    try:
        return read_subscription(bytes(request.protocols[0].metadata))
    except ValueError as error:
        raise InconsistentGroupProtocol from error


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, is_new: bool
) -> tuple[ConsumerMember, str | None]:
    """Return the member before the change, and the id of the static member that it replaces."""
    if instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    if not is_new:
        return group.require_static_member(instance_id, member_id), None
    return join_static(group, member_id, instance_id, is_classic=True)


def _with_request(
    member: ConsumerMember,
    request: JoinGroupRequest,
    client: Client,
    subscription: "ConsumerProtocolSubscription",
) -> ConsumerMember:
    timeout_ms = request.rebalance_timeout_ms
    return member._replace(
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        client_id=client.client_id,
        client_host=client.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        classic=ClassicMember(
            request.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        ),
    )


def _read_owned(subscription: "ConsumerProtocolSubscription", topics: Topics) -> list[OwnedByName]:
    return [
        OwnedByName(topic_id, topic.partitions)
        for topic in subscription.owned_partitions
        if (topic_id := topics.id_of(topic.topic)) is not None
    ]


def _join_response(member: ConsumerMember) -> JoinGroupResponse:
    assert member.classic is not None
    return JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=member.classic.protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )


def sync(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    request: SyncGroupRequest,
) -> bool:
    """Answer a SyncGroup with the member's assignment; return whether it has to rejoin."""
    member, classic = _require(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    name, metadata = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
        raise InconsistentGroupProtocol
    if group.assignment_epoch > member.epoch and member.state != MemberState.UNREVOKED:
        reply = SyncGroupResponse(error_code=RebalanceInProgress.code, assignment=b"")
        builder.answer(builder.ticket, reply)
        return True
    fencing.end_sync(builder, group.group_id, member)
    fencing.start_session(builder, group.group_id, member, tables.settings_of(group.group_id))
    assignment = write_assignment(member.assigned, tables.topics(), version_of(metadata))
    reply = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment,
    )
    builder.answer(builder.ticket, reply)
    return False


def heartbeat(
    tables: ConsumerTables,
    builder: DecisionBuilder,
    group: ConsumerGroup,
    request: HeartbeatRequest,
) -> bool:
    """Answer a Heartbeat; return whether the member has to rejoin.

    It has to rejoin if there is a newer target, if it has to give up partitions, if partitions that
    it waits for are free, or if nobody else causes the group's next target.
    """
    member, _ = _require(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    fencing.start_session(builder, group.group_id, member, tables.settings_of(group.group_id))
    rejoins = (
        member.epoch < group.assignment_epoch
        or member.state == MemberState.UNREVOKED
        or (member.state == MemberState.UNRELEASED and not _waits(group, member))
        or _lacks_target(tables, group)
    )
    code = RebalanceInProgress.code if rejoins else 0
    builder.answer(builder.ticket, HeartbeatResponse(error_code=code))
    return rejoins


def _lacks_target(tables: ConsumerTables, group: ConsumerGroup) -> bool:
    """Return whether the next target is due, and only the join of a classic member can cause it."""
    return (
        group.assignment_epoch < group.epoch
        and group.classic_count == len(group.members)
        and not tables.is_computing(group.group_id)
    )


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether another member still owns a partition from this member's target."""
    return any(
        number not in member.assigned.get(topic_id, {})
        and group.owner_epoch(topic_id, number) != -1
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        for number in numbers
    )


def _require(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicMember]:
    """Return a member that uses the classic protocol; raises UnknownMemberId."""
    if instance_id is None:
        member = group.require_member(member_id)
    else:
        member = group.require_static_member(instance_id, member_id)
    if member.classic is None:
        raise UnknownMemberId(f"Member {member_id} does not use the classic protocol.")
    return member, member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        raise IllegalGeneration


def leave(
    builder: DecisionBuilder, group: ConsumerGroup, request: LeaveGroupRequest
) -> Sequence[ConsumerMember]:
    """Answer a LeaveGroup, with a result for each member; return the members that leave.

    An administrator may name members of either protocol by their instance ids.
    """
    leaving: dict[str, ConsumerMember] = {}
    results = []
    for each in request.members:
        code = 0
        try:
            member = _leaver(group, each)
        except KafkaError as error:
            code = error.code
        else:
            leaving[member.member_id] = member
        results.append(
            LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code
            )
        )
    builder.answer(builder.ticket, LeaveGroupResponse(members=results))
    return list(leaving.values())


def _leaver(group: ConsumerGroup, leaver: LeaveGroupRequest.MemberIdentity) -> ConsumerMember:
    if leaver.group_instance_id is None:
        return group.require_member(leaver.member_id)
    member = group.static_member(leaver.group_instance_id)
    if member is None:
        raise UnknownMemberId
    if leaver.member_id and leaver.member_id != member.member_id:
        raise FencedInstanceId
    return member
