"""The rebalance of a classic group, from one generation to the next.

A rebalance starts (``prepare``), waits until every member has rejoined or the rebalance timeout
expires, and ends (``complete``) with a new generation, whose leader assigns the partitions. An
empty group first waits ``group.initial.rebalance.delay.ms``, and repeats this delay while members
join during it, up to the rebalance timeout. All functions take a group and return the new one.
"""

import logging
from functools import partial

from immutables import Map

from kwire.errors import KafkaError, RebalanceInProgress, UnknownMemberId
from kwire.group.decision_builder import (
    DecisionBuilder,
    answer_removed_member,
    join_response,
    sync_error,
    sync_response,
)
from kwire.group.model import ClassicGroup, ClassicGroupState, Member
from kwire.group.records import group_record

logger = logging.getLogger(__name__)


def rebalance(builder: DecisionBuilder, group: ClassicGroup, reason: str) -> ClassicGroup:
    """Start a rebalance, or complete the current one if all members have joined."""
    if group.can_rebalance:
        return prepare(builder, group, reason)
    return complete_if_joined(builder, group)


def prepare(builder: DecisionBuilder, group: ClassicGroup, reason: str) -> ClassicGroup:
    """Start a rebalance in which every member has to rejoin."""
    if group.state is ClassicGroupState.COMPLETING:
        group = _withdraw_assignments(builder, group)
    group = group._replace(pending_sync=Map())
    builder.end_sync_timeout(group)
    was_empty = group.state is ClassicGroupState.EMPTY
    group = group.transition_to(ClassicGroupState.PREPARING, builder.moment.wall_ms)
    logger.info(
        "rebalance starts group=%s generation=%d reason=%s",
        group.group_id,
        group.generation,
        reason,
    )
    if was_empty:
        delay_ms = builder.settings.group_initial_rebalance_delay_ms
        builder.start_join_timeout(group, delay_ms)
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        return group._replace(initial_delay=(delay_ms, remaining_ms), has_new_member=False)
    if group.all_joined:
        return complete(builder, group)
    builder.start_join_timeout(group, group.rebalance_timeout_ms)
    return group


def complete_if_joined(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """Complete the rebalance once all members have joined, unless an initial delay is running."""
    if (
        group.state is ClassicGroupState.PREPARING
        and group.initial_delay is None
        and group.all_joined
    ):
        return complete(builder, group)
    return group


def on_join_timeout(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """Complete the rebalance when its join timeout expires, or extend the initial delay."""
    if group.state is not ClassicGroupState.PREPARING:
        return group
    if group.initial_delay is None:
        return complete(builder, group)
    delay_ms, remaining_ms = group.initial_delay
    if not group.has_new_member or not remaining_ms:
        return complete(builder, group)
    next_ms = min(builder.settings.group_initial_rebalance_delay_ms, remaining_ms)
    builder.start_join_timeout(group, next_ms)
    return group._replace(
        has_new_member=False, initial_delay=(next_ms, max(remaining_ms - delay_ms, 0))
    )


def on_sync_timeout(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """Remove the members that sent no SyncGroup in time, and rebalance."""
    if (
        group.state not in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE)
        or not group.pending_sync
    ):
        return group
    late_members = [m for m in group.members_by_arrival() if m.member_id in group.pending_sync]
    for member in late_members:
        group = expel(builder, group, member)
    return prepare(builder, group, f"{len(late_members)} members did not sync in time")


def expel(builder: DecisionBuilder, group: ClassicGroup, member: Member) -> ClassicGroup:
    """Remove a member, and answer its waiting requests with an error."""
    builder.end_session(group, member.member_id)
    answer_removed_member(builder, member, UnknownMemberId)
    return group.remove(member.member_id)


def complete(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """End the rebalance with the members that joined.

    Absent static members stay until their sessions expire. If no member joined, the group waits for
    its static members for another rebalance timeout.
    """
    builder.end_join_timeout(group)
    for member in group.members_by_arrival() if group.joining_count < len(group.members) else ():
        if member.join_ticket is None and member.instance_id is None:
            logger.info(
                "member did not rejoin group=%s member=%s", group.group_id, member.member_id
            )
            group = expel(builder, group, member)
    group = group._replace(initial_delay=None, has_new_member=False)
    if not group.members:
        return _become_empty(builder, group)
    if not group.joining_count:
        builder.start_join_timeout(group, group.rebalance_timeout_ms)
        return group
    return _start_generation(builder, _elect_joined_leader(group))


def _elect_joined_leader(group: ClassicGroup) -> ClassicGroup:
    """Return the group with a leader that has joined this rebalance."""
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.join_ticket is not None:
        return group
    new_leader = next(m for m in group.members_by_arrival() if m.join_ticket is not None)
    return group._replace(leader=new_leader.member_id)


def _become_empty(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    group = group.transition_to(ClassicGroupState.EMPTY, builder.moment.wall_ms)._replace(
        generation=group.generation + 1,
        protocol=None,
        leader=None,
        pending_sync=Map(),
    )
    builder.records.append(group_record(group))
    logger.info("group is empty group=%s generation=%d", group.group_id, group.generation)
    return group


def _start_generation(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """Answer every JoinGroup with the new generation, and wait for the leader's SyncGroup."""
    group = group.transition_to(ClassicGroupState.COMPLETING, builder.moment.wall_ms)._replace(
        generation=group.generation + 1,
        protocol=group.select_protocol(),
    )
    for member in group.members_by_arrival():
        for ticket in member.join_tickets:
            builder.answer_late(ticket, partial(join_response, group, member))
        builder.restart_session(group, member)
    members = {
        member_id: member.without_join()._replace(is_new=False)
        for member_id, member in group.members.items()
    }
    builder.start_sync_timeout(group, group.rebalance_timeout_ms)
    logger.info(
        "generation starts group=%s generation=%d members=%d",
        group.group_id,
        group.generation,
        len(members),
    )
    return group._replace(
        members=Map(members), pending_sync=Map(dict.fromkeys(members, True)), joining_count=0
    )


def _withdraw_assignments(builder: DecisionBuilder, group: ClassicGroup) -> ClassicGroup:
    """Clear the assignments, and answer each waiting SyncGroup with RebalanceInProgress."""
    members = {}
    for member_id, member in group.members.items():
        members[member_id] = member._replace(assignment=b"", sync_ticket=None)
    for member in group.members_by_arrival():
        if member.sync_ticket is not None:
            builder.answer_late(member.sync_ticket, partial(sync_error, RebalanceInProgress))
            builder.restart_session(group, member)
    return group._replace(members=Map(members))


def propagate_assignments(
    builder: DecisionBuilder, group: ClassicGroup, assignments: dict[str, bytes]
) -> ClassicGroup:
    """Make the generation stable with the leader's assignments, and write it.

    Each member with a waiting SyncGroup receives its assignment. If the builder has a draft, it
    already holds the record.
    """
    members = {
        member_id: member._replace(assignment=assignments.get(member_id, b""), sync_ticket=None)
        for member_id, member in group.members.items()
    }
    waiters = [member for member in group.members_by_arrival() if member.sync_ticket is not None]
    draft = builder.draft
    since_ms = builder.moment.wall_ms if draft is None else draft.wall_ms
    group = group.transition_to(ClassicGroupState.STABLE, since_ms)._replace(members=Map(members))
    for member in waiters:
        receiver = members[member.member_id]
        builder.answer_late(member.sync_ticket, partial(sync_response, group, receiver))
        builder.restart_session(group, member)
    if draft is None:
        builder.records.append(group_record(group))
    return group


def fail_assignments(
    builder: DecisionBuilder, group: ClassicGroup, error: type[KafkaError]
) -> ClassicGroup:
    """Answer waiting members with an error, and rebalance: no assignments were written."""
    builder.answer(builder.ticket, sync_error(error))
    for member in group.members_by_arrival():
        if member.sync_ticket is not None:
            builder.answer_late(member.sync_ticket, partial(sync_error, error))
            builder.restart_session(group, member)
            group = group.replace(member._replace(sync_ticket=None))
    return prepare(builder, group, f"the assignments could not be written: {error.__name__}")
