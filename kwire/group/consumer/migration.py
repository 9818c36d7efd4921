"""Changes of the protocol of a group with members: classic to consumer, and back.

A classic group becomes a consumer group when the first consumer of the new protocol joins. Its
members stay, with their assignments, and continue to use the classic protocol. A consumer group
becomes a classic group when its last member of the new protocol leaves. Each change is one
decision, so the log never contains both groups.
"""

import logging
from collections.abc import Collection, Generator
from typing import NamedTuple

from kwire.coordinator.decision import Record, Timer
from kwire.drive import run_steps
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
from kwire.group.model import CONSUMER, ClassicGroup, ClassicGroupState, Member
from kwire.group.records import group_tombstone, making_group_record

logger = logging.getLogger(__name__)


# Classic to consumer


class Upgrade(NamedTuple):
    """The consumer group that a classic group becomes, and the records of the change."""

    group: ConsumerGroup
    records: list[Record]


def upgrade(
    builder: DecisionBuilder, classic: ClassicGroup, settings: ConsumerSettings, topics: Topics
) -> ConsumerGroup:
    """Return the consumer group that a classic group becomes; raises GroupIdNotFound if it cannot.

    Members whose requests wait are asked to rejoin.
    """
    upgraded = run_steps(upgrading(classic, settings, topics))
    builder.records.extend(upgraded.records)
    finish_upgrade(builder, classic, upgraded.group, settings)
    return upgraded.group


def upgrading(
    classic: ClassicGroup, settings: ConsumerSettings, topics: Topics
) -> Generator[None, None, Upgrade]:
    """Build the consumer group that a classic group becomes; yields after each member.

    Raises GroupIdNotFound if the group cannot become one.
    """
    group_id = classic.group_id
    _check_upgrade(classic, settings)
    names: set[str] = set()
    members: list[ConsumerMember] = []
    assigned_count = 0
    for member in classic.members_by_arrival():
        converted = _consumer_member(classic, member, topics)
        members.append(converted)
        names |= converted.topics
        assigned_count += sum(map(len, converted.assigned.values()))
        yield
    is_assigned = classic.state is ClassicGroupState.STABLE and (
        assigned_count == _partition_count(names, topics)
    )
    # Only the next generation would have assigned the rest; a new target does it instead.
    epoch = classic.generation if is_assigned else classic.generation + 1
    created: list[Record] = []
    for m in members:
        created.append(records.member_record(group_id, m))
        yield
    created.append(records.epoch_record(group_id, epoch, group_hash(topics, names)))
    for m in members:
        target = {t: frozenset(numbers) for t, numbers in m.assigned.items()}
        created.append(records.target_record(group_id, m.member_id, target))
        yield
    created.append(records.target_epoch_record(group_id, classic.generation, 0))
    for m in members:
        created.append(records.current_record(group_id, m))
        yield
    groups: dict[str, ConsumerGroup] = {}
    for record in created:
        records.apply(groups, record)
        yield
    return Upgrade(groups[group_id], [group_tombstone(group_id), *created])


def _partition_count(names: Collection[str], topics: Topics) -> int:
    """Return how many partitions the existing topics have."""
    return sum(
        topics.partition_count(topic_id)
        for name in names
        if (topic_id := topics.id_of(name)) is not None
    )


def finish_upgrade(
    builder: DecisionBuilder,
    classic: ClassicGroup,
    group: ConsumerGroup,
    settings: ConsumerSettings,
) -> None:
    """Replace the deadlines of a classic group, and answer its waiting requests."""
    for member in classic.members_by_arrival():
        answer_removed_member(builder, member, RebalanceInProgress, member.member_id)
        builder.end_session(classic, member.member_id)
    for member_id in classic.pending_join:
        builder.end_session(classic, member_id)
    builder.end_join_timeout(classic)
    builder.end_sync_timeout(classic)
    for converted in group.members.values():
        fencing.start_session(builder, group.group_id, converted, settings)
    logger.info("classic group becomes a consumer group group=%s", group.group_id)


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


# Consumer to classic


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[ConsumerMember], settings: ConsumerSettings
) -> bool:
    """Return whether the group should become a classic group once these members have left."""
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
    """Return whether the group should become classic once a classic member replaces this one."""
    return (
        replaced.classic is None
        and group.classic_count == len(group.members) - 1
        and settings.may_downgrade
        and len(group.members) <= settings.classic_max_size
    )


class Downgrade(NamedTuple):
    """The classic group that a consumer group becomes, with the records and cancelled deadlines."""

    group: ClassicGroup
    records: list[Record]
    timers: list[Timer]


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

    ``joining`` replaces the static member that leaves, and takes over its target.
    """
    wall_ms = builder.moment.wall_ms
    downgraded = run_steps(downgrading(group, leaving, topics, joining, wall_ms))
    builder.records.extend(downgraded.records)
    builder.timers += downgraded.timers
    return finish_downgrade(builder, downgraded, rebalances=rebalances)


def downgrading(
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    topics: Topics,
    joining: ConsumerMember | None,
    wall_ms: int,
) -> Generator[None, None, Downgrade]:
    """Build the classic group that a consumer group becomes; yields after each member.

    The result is valid only if the group has not changed in the meantime.
    """
    leaving_ids = {member.member_id for member in leaving}
    members = list(group.members.values())
    stay = [member for member in members if member.member_id not in leaving_ids]
    targets = dict(group.target)
    if joining is not None:
        (former_id,) = leaving_ids
        targets[joining.member_id] = targets.get(former_id, {})
        stay.append(joining)
    created: list[Record] = []
    for record in records.group_tombstones(group, joining):
        created.append(record)
        yield
    timers: list[Timer] = []
    for member in members:
        timers += fencing.ended_timers(group.group_id, member)
        yield
    classic = ClassicGroup(
        group_id=group.group_id,
        state=ClassicGroupState.STABLE,
        since_ms=wall_ms,
        generation=group.epoch,
    )
    for member in stay:
        classic = classic.add(_classic_member(member), CONSUMER)
        yield
    classic = classic._replace(protocol=classic.select_protocol())
    yield
    for each in classic.members_by_arrival():
        version = version_of(each.metadata(classic.protocol))
        assignment = write_assignment(targets.get(each.member_id, {}), topics, version)
        classic = classic.replace(each._replace(assignment=assignment))
        yield
    created.append((yield from making_group_record(classic)))
    return Downgrade(classic, created, timers)


def finish_downgrade(
    builder: DecisionBuilder, downgraded: Downgrade, *, rebalances: bool
) -> ClassicGroup:
    """Start the members' sessions, and have them rejoin the classic group.

    The caller ends the deadlines of the consumer group, ``downgraded.timers``.
    """
    classic = downgraded.group
    for member in classic.members_by_arrival():
        builder.restart_session(classic, member)
    logger.info("consumer group becomes a classic group group=%s", classic.group_id)
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
