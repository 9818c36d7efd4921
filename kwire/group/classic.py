"""Requests from the members of a classic group, and their session timeouts.

Each function takes a group and returns the changed group; it adds answers, deadlines and records to
the builder. An error that concerns the whole request is raised.

The rules are Kafka's: KIP-394 (a new member receives its id before it joins), KIP-345 (static
members keep their membership across a restart), KIP-814 (a static leader that rejoins can skip the
assignment).
"""

import logging
from typing import Final

from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kwire.group.decision_builder import (
    Client,
    DecisionBuilder,
    answer_removed_member,
    join_error,
    join_response,
    sync_error,
    sync_response,
)
from kwire.group.model import ClassicGroup, ClassicGroupState, Member
from kwire.group.rebalance import (
    complete_if_joined,
    expel,
    prepare,
    propagate_assignments,
    rebalance,
)
from kwire.group.records import group_record

logger = logging.getLogger(__name__)

WAITING_JOINS_MAX: Final = 4
"""The number of JoinGroup requests of one member that may wait; earlier ones are refused."""
Leaver = LeaveGroupRequest.MemberIdentity
LeaveResult = LeaveGroupResponse.MemberResponse


class Refused(Exception):
    """The rejection of a JoinGroup, with the member id to put in the response."""

    def __init__(self, error: type[KafkaError], member_id: str = "") -> None:
        super().__init__(error.__name__)
        self.error = error
        self.member_id = member_id


# Joining


def join(
    builder: DecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    client: Client,
    fresh_id: str,
) -> ClassicGroup:
    """Decide on a JoinGroup; ``fresh_id`` is used if the member needs an id."""
    try:
        return _join(builder, group, request, client, fresh_id)
    except Refused as refused:
        if refused.error is GroupMaxSizeReached:
            group = group.remove(request.member_id)
        builder.answer(builder.ticket, join_error(refused.error, refused.member_id))
        return group


def _join(
    builder: DecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    client: Client,
    fresh_id: str,
) -> ClassicGroup:
    member_id, instance_id = request.member_id, request.group_instance_id
    if not _has_room(builder, group, member_id):
        raise Refused(GroupMaxSizeReached)
    if not group.supports(request.protocol_type, [p.name for p in request.protocols]):
        raise Refused(InconsistentGroupProtocol, member_id)
    if member_id:
        return _join_again(builder, group, request, client)
    if instance_id is not None:
        current = group.instances.get(instance_id)
        if current is not None:
            return _rejoin_static_member(builder, group, request, current, fresh_id)
    elif request.knows_member_id_required:
        if len(group.pending_join) >= builder.settings.max_pending_members:
            raise Refused(GroupMaxSizeReached)
        builder.start_session(group, fresh_id, request.session_timeout_ms)
        builder.answer(builder.ticket, join_error(MemberIdRequired, fresh_id))
        return group._replace(pending_join=group.pending_join.set(fresh_id, True))
    return _admit(builder, group, request, client, fresh_id)


def _has_room(builder: DecisionBuilder, group: ClassicGroup, member_id: str) -> bool:
    limit = builder.settings.group_max_size
    member = group.members.get(member_id)
    if group.state is ClassicGroupState.EMPTY:
        return True
    if group.state is ClassicGroupState.PREPARING:
        waits = member is not None and member.join_ticket is not None
        return waits or group.joining_count < limit
    return member is not None or len(group.members) < limit


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple({p.name: bytes(p.metadata) for p in request.protocols}.items())


def _admit(
    builder: DecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    client: Client,
    member_id: str,
) -> ClassicGroup:
    """Add a new member and rebalance."""
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=_protocols(request),
        join_ticket=builder.ticket,
        is_new=True,
    )
    group = group.add(member, request.protocol_type)
    if group.initial_delay is not None:
        group = group._replace(has_new_member=True)
    builder.start_session(group, member_id, builder.settings.new_member_join_timeout_ms)
    return rebalance(builder, group, f"{member_id} joined")


def _join_again(
    builder: DecisionBuilder, group: ClassicGroup, request: JoinGroupRequest, client: Client
) -> ClassicGroup:
    """Join a member that has an id: a new member with a fresh id, or a member that rejoins."""
    member_id = request.member_id
    if member_id in group.pending_join:
        if request.group_instance_id is not None:
            raise Refused(UnknownMemberId, member_id)
        return _admit(builder, group, request, client, member_id)
    try:
        member = group.check_member(member_id, request.group_instance_id)
    except KafkaError as error:
        raise Refused(type(error), member_id) from error
    is_unchanged = member.protocols == _protocols(request)
    may_keep_generation = group.state is ClassicGroupState.COMPLETING or (
        group.state is ClassicGroupState.STABLE and group.leader != member_id
    )
    if is_unchanged and may_keep_generation:
        builder.answer(builder.ticket, join_response(group, member))
        return group
    group = _update_member(builder, group, member, request)
    return rebalance(builder, group, f"{member_id} rejoined")


def _update_member(
    builder: DecisionBuilder, group: ClassicGroup, member: Member, request: JoinGroupRequest
) -> ClassicGroup:
    """Update a member's protocols and timeouts; its JoinGroup waits for the next generation."""
    waiting = member.join_tickets
    for ticket in waiting[: 1 - WAITING_JOINS_MAX]:
        builder.answer(ticket, join_error(RebalanceInProgress, member.member_id))
    return group.replace(
        member._replace(
            protocols=_protocols(request),
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            join_ticket=builder.ticket,
            earlier_join_tickets=waiting[1 - WAITING_JOINS_MAX :],
        )
    )


def _rejoin_static_member(
    builder: DecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    old_id: str,
    new_id: str,
) -> ClassicGroup:
    """Give a restarted static member a new member id, and fence the old one."""
    old = group.members[old_id]
    old_leader = group.leader
    for ticket in old.join_tickets:
        builder.answer(ticket, join_error(FencedInstanceId, old_id))
    builder.answer(old.sync_ticket, sync_error(FencedInstanceId))
    builder.end_session(group, old_id)
    group = group.replace_static_member(old_id, new_id)
    builder.restart_session(group, group.members[new_id])
    group = _update_member(builder, group, group.members[new_id], request)
    if group.state is ClassicGroupState.COMPLETING:
        return prepare(builder, group, f"static member {request.group_instance_id} returned")
    if group.state is not ClassicGroupState.STABLE:
        return complete_if_joined(builder, group)
    if group.select_protocol() != group.protocol:
        return rebalance(builder, group, f"{request.group_instance_id} changes the protocol")
    group = group.replace(group.members[new_id].without_join())
    builder.records.append(group_record(group))
    reply = join_response(group, group.members[new_id])
    if not request.can_skip_assignment:
        reply.members = []
        reply.leader = old_leader or ""
    elif group.leader == new_id:
        reply.skip_assignment = True
    builder.answer(builder.ticket, reply)
    return group


# Synchronising


def sync(builder: DecisionBuilder, group: ClassicGroup, request: SyncGroupRequest) -> ClassicGroup:
    """Decide on a SyncGroup: the leader sends all assignments, each member receives its own."""
    if group.state is ClassicGroupState.EMPTY:
        raise UnknownMemberId
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise IllegalGeneration
    for requested, current in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if requested is not None and current is not None and requested != current:
            raise InconsistentGroupProtocol
    if group.state is ClassicGroupState.PREPARING:
        raise RebalanceInProgress
    if member.member_id in group.pending_sync:
        group = group._replace(pending_sync=group.pending_sync.delete(member.member_id))
        if not group.pending_sync:
            builder.end_sync_timeout(group)
    if group.state is ClassicGroupState.STABLE:
        builder.answer(builder.ticket, sync_response(group, member))
        return group
    builder.answer(member.sync_ticket, sync_error(RebalanceInProgress))
    group = group.replace(member._replace(sync_ticket=builder.ticket))
    if group.leader != member.member_id:
        return group
    assignments = {a.member_id: bytes(a.assignment) for a in request.assignments}
    return propagate_assignments(builder, group, assignments)


# Staying and leaving


def heartbeat(
    builder: DecisionBuilder, group: ClassicGroup, request: HeartbeatRequest
) -> ClassicGroup:
    """Restart the session of a member; during a rebalance the response asks it to rejoin."""
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise IllegalGeneration
    builder.restart_session(group, member)
    code = RebalanceInProgress.code if group.state is ClassicGroupState.PREPARING else 0
    builder.answer(builder.ticket, HeartbeatResponse(error_code=code))
    return group


def leave(
    builder: DecisionBuilder, group: ClassicGroup, request: LeaveGroupRequest
) -> ClassicGroup:
    """Remove the members of a LeaveGroup; an administrator may give only instance ids."""
    results = []
    for leaver in request.members:
        try:
            group = _remove_leaver(builder, group, leaver)
        except KafkaError as error:
            results.append(_leave_result(leaver, error.code))
        else:
            results.append(_leave_result(leaver, 0))
    builder.answer(builder.ticket, LeaveGroupResponse(members=results))
    if any(not result.error_code for result in results):
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            return prepare(builder, group, "members left")
        return complete_if_joined(builder, group)
    return group


def _leave_result(leaver: Leaver, error_code: int) -> LeaveResult:
    return LeaveResult(
        member_id=leaver.member_id,
        group_instance_id=leaver.group_instance_id,
        error_code=error_code,
    )


def _remove_leaver(builder: DecisionBuilder, group: ClassicGroup, leaver: Leaver) -> ClassicGroup:
    member_id, instance_id = leaver.member_id, leaver.group_instance_id
    if not member_id:
        member_id = group.instances.get(instance_id or "", "")
    elif member_id in group.pending_join:
        builder.end_session(group, member_id)
        return group.remove(member_id)
    member = group.check_member(member_id, instance_id)
    logger.info("member left group=%s member=%s", group.group_id, member_id)
    return expel(builder, group, member)


def on_session_timeout(
    builder: DecisionBuilder, group: ClassicGroup, member_id: str
) -> ClassicGroup:
    """Remove a member that has sent no request within its session timeout.

    A member with a waiting request counts as alive, except a new member: its client may have
    disconnected long ago.
    """
    if member_id in group.pending_join:
        logger.info("pending member expired group=%s member=%s", group.group_id, member_id)
        return complete_if_joined(builder, group.remove(member_id))
    member = group.members.get(member_id)
    if member is None:
        return group
    waits = member.join_ticket is not None or member.sync_ticket is not None
    if waits and not member.is_new:
        return group
    logger.info("member failed group=%s member=%s", group.group_id, member_id)
    answer_removed_member(builder, member, UnknownMemberId)
    group = group.remove(member_id)
    if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
        return prepare(builder, group, f"{member_id} failed")
    return complete_if_joined(builder, group)
