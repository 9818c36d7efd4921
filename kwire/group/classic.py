"""The requests of a classic group's members, and the end of their sessions.

Each function takes a group and returns the changed one; answers, deadlines and records go into the
turn.  An error of the whole request is raised.

The rules are Kafka's: KIP-394 (a new member is given its id before it joins), KIP-345 (static
members keep their membership across a restart), KIP-814 (a static leader that returns need not
assign again).
"""

import logging

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
from kwire.group.model import ClassicGroup, Member, State
from kwire.group.rebalance import (
    assigned,
    complete,
    complete_if_joined,
    expel,
    prepare,
    rebalance,
)
from kwire.group.records import group_record
from kwire.group.turn import Asker, Turn, dismiss, join_failed, joined, sync_failed, synced

log = logging.getLogger(__name__)

Leaver = LeaveGroupRequest.MemberIdentity
Left = LeaveGroupResponse.MemberResponse


class Refused(Exception):
    """A JoinGroup that fails with a member id in the answer."""

    def __init__(self, error: type[KafkaError], member_id: str = "") -> None:
        super().__init__(error.__name__)
        self.error = error
        self.member_id = member_id


# Joining


def join(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, asker: Asker, fresh_id: str
) -> ClassicGroup:
    """Decide on a JoinGroup; ``fresh_id`` is used if the member needs an id."""
    try:
        return _join(turn, group, request, asker, fresh_id)
    except Refused as refused:
        if refused.error is GroupMaxSizeReached:
            group = group.remove(request.member_id)
        turn.answer(turn.ticket, join_failed(refused.error, refused.member_id))
        return group


def _join(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, asker: Asker, fresh_id: str
) -> ClassicGroup:
    member_id, instance_id = request.member_id, request.group_instance_id
    if not _has_room(turn, group, member_id):
        raise Refused(GroupMaxSizeReached)
    if not group.supports(request.protocol_type, [p.name for p in request.protocols]):
        raise Refused(InconsistentGroupProtocol, member_id)
    if member_id:
        return _join_again(turn, group, request, asker)
    if instance_id is not None:
        current = group.instances.get(instance_id)
        if current is not None:
            return _static_return(turn, group, request, current, fresh_id)
    elif request.knows_member_id_required:
        if len(group.pending) >= turn.settings.max_pending_members:
            raise Refused(GroupMaxSizeReached)
        turn.session_in(group, fresh_id, request.session_timeout_ms)
        turn.answer(turn.ticket, join_failed(MemberIdRequired, fresh_id))
        return group._replace(pending=group.pending.set(fresh_id, True))
    return _admit(turn, group, request, asker, fresh_id)


def _has_room(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    limit = turn.settings.group_max_size
    member = group.members.get(member_id)
    if group.state is State.EMPTY:
        return True
    if group.state is State.PREPARING:
        waits = member is not None and member.join_ticket is not None
        return waits or group.joining < limit
    return member is not None or len(group.members) < limit


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple({p.name: bytes(p.metadata) for p in request.protocols}.items())


def _admit(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, asker: Asker, member_id: str
) -> ClassicGroup:
    """Add a new member and rebalance."""
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=asker.client_id,
        client_host=asker.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=_protocols(request),
        join_ticket=turn.ticket,
        is_new=True,
    )
    group = group.add(member, request.protocol_type)
    if group.initial_delay is not None:
        group = group._replace(grown=True)
    turn.session_in(group, member_id, turn.settings.new_member_join_timeout_ms)
    return rebalance(turn, group, f"{member_id} joined")


def _join_again(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, asker: Asker
) -> ClassicGroup:
    """Join a member that has an id: for the first time with it, or for a new generation."""
    member_id = request.member_id
    if member_id in group.pending:
        if request.group_instance_id is not None:
            raise Refused(UnknownMemberId, member_id)
        return _admit(turn, group, request, asker, member_id)
    try:
        member = group.check_member(member_id, request.group_instance_id)
    except KafkaError as error:
        raise Refused(type(error), member_id) from error
    same = member.protocols == _protocols(request)
    settled = group.state is State.COMPLETING or (
        group.state is State.STABLE and group.leader != member_id
    )
    if same and settled:
        turn.answer(turn.ticket, joined(group, member))
        return group
    group = _updated(turn, group, member, request)
    return rebalance(turn, group, f"{member_id} joined again")


def _updated(
    turn: Turn, group: ClassicGroup, member: Member, request: JoinGroupRequest
) -> ClassicGroup:
    """Set a member's new protocols and timeouts; it waits for the next generation."""
    turn.answer(member.join_ticket, join_failed(RebalanceInProgress, member.member_id))
    return group.replace(
        member._replace(
            protocols=_protocols(request),
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            join_ticket=turn.ticket,
        )
    )


def _static_return(
    turn: Turn,
    group: ClassicGroup,
    request: JoinGroupRequest,
    old_id: str,
    new_id: str,
) -> ClassicGroup:
    """Replace the member id of a restarted static member by a new one, fencing the old id."""
    old = group.members[old_id]
    old_leader = group.leader
    turn.answer(old.join_ticket, join_failed(FencedInstanceId, old_id))
    turn.answer(old.sync_ticket, sync_failed(FencedInstanceId))
    turn.end_session(group, old_id)
    group = group.renamed(old_id, new_id)
    turn.session(group, group.members[new_id])
    group = _updated(turn, group, group.members[new_id], request)
    if group.state is State.COMPLETING:
        return prepare(turn, group, f"static member {request.group_instance_id} returned")
    if group.state is not State.STABLE:
        return complete_if_joined(turn, group)
    if group.chosen_protocol() != group.protocol:
        return rebalance(turn, group, f"{request.group_instance_id} changes the protocol")
    group = group.replace(group.members[new_id]._replace(join_ticket=None))
    turn.records.append(group_record(group))
    reply = joined(group, group.members[new_id])
    if not request.can_skip_assignment:
        reply.members = []
        reply.leader = old_leader or ""
    elif group.leader == new_id:
        reply.skip_assignment = True
    turn.answer(turn.ticket, reply)
    return group


# Synchronising


def sync(turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> ClassicGroup:
    """Decide on a SyncGroup: the leader sends the assignments, each member gets its own."""
    if group.state is State.EMPTY:
        raise UnknownMemberId
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise IllegalGeneration
    for told, known in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if told is not None and known is not None and told != known:
            raise InconsistentGroupProtocol
    if group.state is State.PREPARING:
        raise RebalanceInProgress
    if member.member_id in group.unsynced:
        group = group._replace(unsynced=group.unsynced.delete(member.member_id))
        if not group.unsynced:
            turn.end_sync(group)
    if group.state is State.STABLE:
        turn.answer(turn.ticket, synced(group, member))
        return group
    turn.answer(member.sync_ticket, sync_failed(RebalanceInProgress))
    group = group.replace(member._replace(sync_ticket=turn.ticket))
    if group.leader != member.member_id:
        return group
    return assigned(turn, group, {a.member_id: bytes(a.assignment) for a in request.assignments})


# Staying and leaving


def heartbeat(turn: Turn, group: ClassicGroup, request: HeartbeatRequest) -> ClassicGroup:
    """Restart the session of a member on its Heartbeat; the answer says whether to join again."""
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise IllegalGeneration
    turn.session(group, member)
    code = RebalanceInProgress.code if group.state is State.PREPARING else 0
    turn.answer(turn.ticket, HeartbeatResponse(error_code=code))
    return group


def leave(turn: Turn, group: ClassicGroup, request: LeaveGroupRequest) -> ClassicGroup:
    """Remove the members of a LeaveGroup; administrators send only instance ids."""
    answers = []
    for leaver in request.members:
        try:
            group = _one_leaves(turn, group, leaver)
        except KafkaError as error:
            answers.append(_left(leaver, error.code))
        else:
            answers.append(_left(leaver, 0))
    turn.answer(turn.ticket, LeaveGroupResponse(members=answers))
    if any(not left.error_code for left in answers):
        if group.state in (State.STABLE, State.COMPLETING):
            return prepare(turn, group, "members left")
        return complete_if_joined(turn, group)
    return group


def _left(leaver: Leaver, error_code: int) -> Left:
    return Left(
        member_id=leaver.member_id,
        group_instance_id=leaver.group_instance_id,
        error_code=error_code,
    )


def _one_leaves(turn: Turn, group: ClassicGroup, leaver: Leaver) -> ClassicGroup:
    member_id, instance_id = leaver.member_id, leaver.group_instance_id
    if not member_id:
        member_id = group.instances.get(instance_id or "", "")
    elif member_id in group.pending:
        turn.end_session(group, member_id)
        return group.remove(member_id)
    member = group.check_member(member_id, instance_id)
    log.info("member left group=%s member=%s", group.group_id, member_id)
    return expel(turn, group, member)


def session_over(turn: Turn, group: ClassicGroup, member_id: str) -> ClassicGroup:
    """Remove a member that sent no request for its session timeout.

    A member that waits for an answer is alive, unless it joined for the first time: such a client
    may have disconnected long ago.
    """
    if member_id in group.pending:
        log.info("pending member expired group=%s member=%s", group.group_id, member_id)
        return _without(turn, group.remove(member_id))
    member = group.members.get(member_id)
    if member is None:
        return group
    waits = member.join_ticket is not None or member.sync_ticket is not None
    if waits and not member.is_new:
        return group
    log.info("member failed group=%s member=%s", group.group_id, member_id)
    dismiss(turn, member, UnknownMemberId)
    group = group.remove(member_id)
    if group.state in (State.STABLE, State.COMPLETING):
        return prepare(turn, group, f"{member_id} failed")
    return _without(turn, group)


def _without(turn: Turn, group: ClassicGroup) -> ClassicGroup:
    """Complete a rebalance if it waited only for a member that failed."""
    if group.state is State.PREPARING and group.all_joined:
        return complete(turn, group)
    return group
