"""Changes of the protocol of a group with members: classic to consumer, and back.

A classic group becomes a consumer group when the first consumer of the new protocol joins. Its
members stay, with their assignments, and go on with the classic protocol. A consumer group becomes
a classic group when its last member of the new protocol leaves. Each change is one decision, so the
log never has both groups.
"""

import logging
from collections.abc import Collection

from kwire.errors import GroupIdNotFound, RebalanceInProgress
from kwire.group import rebalance
from kwire.group.consumer import fencing, records
from kwire.group.consumer.embedded import (
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from kwire.group.consumer.model import ClassicMember, ConsumerGroup, ConsumerMember
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.topics import Topics, group_hash
from kwire.group.decision_builder import DecisionBuilder, answer_removed_member
from kwire.group.model import CONSUMER, ClassicGroup, Member, State
from kwire.group.records import group_record, group_tombstone

logger = logging.getLogger(__name__)


# Classic to consumer


def upgrade(
    builder: DecisionBuilder, classic: ClassicGroup, settings: ConsumerSettings, topics: Topics
) -> ConsumerGroup:
    """Return the consumer group that a classic group becomes; raises GroupIdNotFound if it cannot.

    Members whose requests wait are asked to rejoin.
    """
    group_id = classic.group_id
    _check_upgrade(classic, settings)
    group = ConsumerGroup(group_id)
    members: list[ConsumerMember] = []
    for member in classic.members_by_arrival():
        converted = _consumer_member(classic, member, topics)
        members.append(converted)
        group.apply_member(converted)
    builder.records.append(group_tombstone(group_id))
    created = [records.member_record(group_id, member) for member in members]
    metadata_hash = group_hash(topics, group.topics)
    created.append(records.epoch_record(group_id, classic.generation, metadata_hash))
    created += [
        records.target_record(
            group_id, m.member_id, {t: frozenset(numbers) for t, numbers in m.assigned.items()}
        )
        for m in members
    ]
    created.append(records.target_epoch_record(group_id, classic.generation, 0))
    created += [records.current_record(group_id, member) for member in members]
    builder.records.extend(created)
    _end_classic(builder, classic)
    for converted in members:
        fencing.start_session(builder, group_id, converted, settings)
    logger.info("classic group becomes a consumer group group=%s", group_id)
    groups: dict[str, ConsumerGroup] = {}
    for record in created:
        records.apply(groups, record)
    return groups[group_id]


def _check_upgrade(classic: ClassicGroup, settings: ConsumerSettings) -> None:
    reason = None
    if not settings.may_upgrade:
        reason = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > settings.max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise GroupIdNotFound(
            f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
        )


def _consumer_member(classic: ClassicGroup, member: Member, topics: Topics) -> ConsumerMember:
    """Return a member of a classic group as a member of a consumer group."""
    refusal = f"Cannot upgrade classic group {classic.group_id} to consumer group because "
    try:
        protocol = classic.protocol or classic.select_protocol()
        subscription = read_subscription(member.metadata(protocol))
        assigned = read_assignment(member.assignment, topics)
    except ValueError as error:
        raise GroupIdNotFound(f"{refusal}the embedded consumer protocol is malformed.") from error
    if assigned is None:
        raise GroupIdNotFound(
            f"{refusal}an unsupported custom assignor is in use. Please refer to the documentation "
            "or switch to a default assignor before re-attempting the upgrade."
        )
    generation = classic.generation
    return ConsumerMember(
        member_id=member.member_id,
        epoch=generation,
        previous_epoch=generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        assigned={topic_id: dict.fromkeys(each, generation) for topic_id, each in assigned.items()},
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )


def _end_classic(builder: DecisionBuilder, classic: ClassicGroup) -> None:
    """End the deadlines of a classic group, and answer its waiting requests."""
    for member in classic.members_by_arrival():
        answer_removed_member(builder, member, RebalanceInProgress)
        builder.end_session(classic, member.member_id)
    for member_id in classic.pending_join:
        builder.end_session(classic, member_id)
    builder.end_join_timeout(classic)
    builder.end_sync_timeout(classic)


# Consumer to classic


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[ConsumerMember], settings: ConsumerSettings
) -> bool:
    """Return whether the group becomes a classic group once these members have left."""
    left_count = len(group.members) - len(leaving)
    classic_count = group.classic_count - sum(member.classic is not None for member in leaving)
    return (
        0 < left_count == classic_count
        and settings.may_downgrade
        and left_count <= settings.classic_max_size
    )


def may_downgrade_by(
    group: ConsumerGroup, replaced: ConsumerMember, settings: ConsumerSettings
) -> bool:
    """Return whether the group becomes a classic group once a classic member replaces this one."""
    return (
        replaced.classic is None
        and group.classic_count == len(group.members) - 1
        and settings.may_downgrade
        and len(group.members) <= settings.classic_max_size
    )


def downgrade(
    builder: DecisionBuilder,
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    topics: Topics,
    joining: ConsumerMember | None = None,
    *,
    rebalances: bool = True,
) -> ClassicGroup:
    """Return the classic group that the group becomes without these members.

    ``joining`` takes the place, and the target, of the static member that leaves.
    """
    leaving_ids = {member.member_id for member in leaving}
    stay = [member for member in group.members.values() if member.member_id not in leaving_ids]
    targets = dict(group.target)
    if joining is not None:
        (former_id,) = leaving_ids
        targets[joining.member_id] = targets.get(former_id, {})
        stay.append(joining)
    builder.records.extend(records.group_tombstones(group, joining))
    for member in group.members.values():
        fencing.end_timers(builder, group.group_id, member)
    classic = ClassicGroup(
        group_id=group.group_id,
        state=State.STABLE,
        since_ms=builder.moment.wall_ms,
        generation=group.epoch,
    )
    for member in stay:
        classic = classic.add(_classic_member(member), CONSUMER)
    classic = classic._replace(protocol=classic.select_protocol())
    for each in classic.members_by_arrival():
        version = version_of(each.metadata(classic.protocol))
        assignment = write_assignment(targets.get(each.member_id, {}), topics, version)
        classic = classic.replace(each._replace(assignment=assignment))
        builder.restart_session(classic, each)
    builder.records.append(group_record(classic))
    logger.info("consumer group becomes a classic group group=%s", group.group_id)
    if rebalances:
        return rebalance.prepare(builder, classic, "the group uses the classic protocol again")
    return classic


def _classic_member(member: ConsumerMember) -> Member:
    assert member.classic is not None
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )
