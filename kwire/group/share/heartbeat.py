"""The decision on a ShareGroupHeartbeat: a member joins, stays, changes or leaves.

Four steps, as in Kafka: the member is created or updated; the group epoch increases if its
subscriptions, the metadata of their topics or the initialized partitions have changed; the target
assignment follows the group epoch, at most once in `group.share.assignment.interval.ms`; the member
moves to its target. All records of the steps are one batch, together with that of the partitions
whose state has to be initialized.
"""

import logging
from collections.abc import Set as AbstractSet

import attrs

from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatResponse as Response,
)
from kwire.codec.messages.share_group_heartbeat import TopicPartitions
from kwire.drive import run_steps
from kwire.errors import FencedMemberEpoch, GroupMaxSizeReached, InvalidRequest
from kwire.group.assigned import check_filled
from kwire.group.consumer.model import LEAVE_EPOCH, Partitions
from kwire.group.consumer.topics import group_hash
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.kind_tables import AT_ONCE, changed_targets
from kwire.group.share import initialization, records
from kwire.group.share.model import ShareGroup, ShareMember, TopicState
from kwire.group.share.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    partitions_record,
)
from kwire.group.share.settings import ShareSettings
from kwire.group.share.target import ShareTables, computing, ids_of, target_size

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
MEMBER_ID_LENGTH = 36


def check_member_id(request: Request) -> None:
    """Reject a member id whose length is not that of a UUID as text."""
    if not 0 < len(request.member_id) <= MEMBER_ID_LENGTH:
        raise InvalidRequest("Invalid member id in the request.")


def check(request: Request) -> None:
    """Reject a heartbeat whose fields contradict each other."""
    check_filled(request.member_id, "MemberId")
    check_filled(request.group_id, "GroupId")
    check_filled(request.rack_id, "RackId")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


@attrs.define(eq=False, repr=False)
class Beat:
    """The change of one member by its heartbeat, before any of it is written."""

    tables: ShareTables
    builder: DecisionBuilder
    group: ShareGroup
    """The group before the change."""
    settings: ShareSettings
    old: ShareMember
    """The member before the change; an empty one if it is new."""
    new: ShareMember
    epoch: int
    """The group epoch after the change."""
    bumps_epoch: bool = False
    starts_target: bool = False
    """True if the change starts to compute a large target."""
    to_initialize: dict[bytes, TopicState] = attrs.field(factory=dict)
    """The partitions whose state has to be initialized."""

    def write_member(self) -> None:
        """Write the member if it has changed, and record whether the assignment may change."""
        if self.new != self.old:
            self.builder.records.append(member_record(self.group.group_id, self.new))
        self.bumps_epoch = self.new.topics != self.old.topics
        if self.group.assignment_epoch >= self.epoch and self.group.has_unassigned():
            self.bumps_epoch = True

    def bump_epoch(self) -> None:
        """Bump the group epoch if the input of the assignment has changed."""
        topics = self.tables.topics()
        if not self.bumps_epoch and self.group.checked_version is topics.version:
            return
        metadata_hash = group_hash(topics, self._names())
        if self.bumps_epoch or metadata_hash != self.group.metadata_hash:
            self.bumps_epoch = True
            self.epoch += 1
            record = epoch_record(self.group.group_id, self.epoch, metadata_hash)
            self.builder.records.append(record)
            logger.info("group epoch bumped group=%s epoch=%d", self.group.group_id, self.epoch)

    def _names(self) -> AbstractSet[str]:
        """Return the topics to which the group subscribes after the change."""
        if self.new.topics == self.old.topics:
            return self.group.by_name.keys()
        return names_without(self.group, self.old) | self.new.topics

    def follow_epoch(self) -> tuple[int, Partitions]:
        """Compute the target if it is behind the group epoch; return its epoch and the member's.

        The last target stays in force while it is younger than the assignment interval, and while a
        large target is being computed.
        """
        group, moment, member_id = self.group, self.builder.moment, self.new.member_id
        last = group.assignment_epoch, group.target.get(member_id, {})
        if group.assignment_epoch >= self.epoch or group.has_recent_target(
            self.settings.assignment_interval_ms, moment.wall_ms
        ):
            return last
        if target_size(group) > AT_ONCE:
            self.starts_target = not self.tables.is_computing(group.group_id)
            return last
        targets = run_steps(computing(group, {member_id: self.new}, self.tables.topics()))
        self.builder.records += changed_targets(records, group, targets, self.epoch, moment.wall_ms)
        return self.epoch, targets.get(member_id, {})

    def move(self, epoch: int, target: Partitions) -> None:
        """Move the member to its target of this epoch, and write what has changed."""
        if not self.bumps_epoch and self.new.epoch == epoch:
            return
        subscribed = ids_of(self.new.topics, self.tables.topics())
        assigned = {t: numbers for t, numbers in target.items() if t in subscribed}
        moved = self.new._replace(assigned=assigned)
        if moved.epoch != epoch:
            moved = moved.move_to(epoch)
        if moved != self.new:
            self.builder.records.append(current_record(self.group.group_id, moved))
        self.new = moved

    def initialize(self) -> None:
        """Record the partitions whose state has to be initialized before they are assigned."""
        topics, moment = self.tables.topics(), self.builder.moment
        is_same = self.new.topics == self.old.topics
        if is_same and self.group.complete_version is topics.version:
            return
        self.to_initialize = initialization.find_uninitialized(
            self.group,
            self._names(),
            topics,
            moment.wall_ms,
            self.settings.initialize_retry_interval_ms,
        )
        if self.to_initialize:
            partitions = initialization.begin(self.group.partitions, self.to_initialize)
            record = partitions_record(self.group.group_id, partitions, topics)
            self.builder.records.append(record)


def beat(
    tables: ShareTables,
    builder: DecisionBuilder,
    group: ShareGroup,
    request: Request,
    client: Client,
) -> Beat:
    """Decide on a heartbeat of a member that joins or stays."""
    settings = tables.settings_of(group.group_id)
    old = _member(group, request, settings)
    change = Beat(
        tables, builder, group, settings, old, _with_request(old, request, client), group.epoch
    )
    change.write_member()
    change.bump_epoch()
    change.move(*change.follow_epoch())
    change.initialize()
    start_session(builder, group.group_id, old.member_id, settings)
    return change


def start_session(
    builder: DecisionBuilder, group_id: str, member_id: str, settings: ShareSettings
) -> None:
    """Restart the member's session."""
    builder.start_timer(("share-session", group_id, member_id), settings.session_timeout_ms)


def _member(group: ShareGroup, request: Request, settings: ShareSettings) -> ShareMember:
    """Return the member before the change; reject one that may not join or stay."""
    member = group.members.get(request.member_id)
    if member is None and len(group.members) >= settings.max_size:
        raise GroupMaxSizeReached(
            f"The share group has reached its maximum capacity of {settings.max_size} members."
        )
    if member is None and request.member_epoch == JOIN_EPOCH:
        return ShareMember(request.member_id)
    member = group.require_member(request.member_id)
    _check_epoch(group, member, request.member_epoch)
    return member


def _check_epoch(group: ShareGroup, member: ShareMember, epoch: int) -> None:
    """Fence a member whose epoch is neither the current nor the previous one."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if epoch > member.epoch:
        raise group.fencing(member, epoch)
    if epoch != member.previous_epoch:
        raise FencedMemberEpoch(
            f"The share group member has a smaller member epoch ({epoch}) than the one known by "
            f"the group coordinator ({member.epoch}), and it does not match the previous member "
            f"epoch ({member.previous_epoch}). The member must abandon all its partitions and "
            "rejoin."
        )


def _with_request(member: ShareMember, request: Request, client: Client) -> ShareMember:
    """Return the member with the request's fields; fields that were not sent stay unchanged."""
    names = request.subscribed_topic_names
    return member._replace(
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        topics=member.topics if names is None else frozenset(names),
    )


def response(request: Request, change: Beat) -> Response:
    """Return the response; it has the assignment if that has changed, or for a full request."""
    old, new = change.old, change.new
    reply = Response(
        member_id=new.member_id,
        member_epoch=new.epoch,
        heartbeat_interval_ms=change.settings.heartbeat_interval_ms,
    )
    is_full = request.subscribed_topic_names is not None
    if request.member_epoch == JOIN_EPOCH or is_full or new.assigned != old.assigned:
        reply.assignment = Response.Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in new.assigned.items()
            ]
        )
    return reply


def remove(
    tables: ShareTables,
    builder: DecisionBuilder,
    group: ShareGroup,
    member: ShareMember,
) -> None:
    """Remove a member and bump the group epoch."""
    builder.records.extend(member_tombstones(group.group_id, member.member_id))
    metadata_hash = group_hash(tables.topics(), names_without(group, member))
    builder.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    builder.timers.append((("share-session", group.group_id, member.member_id), None))


def names_without(group: ShareGroup, member: ShareMember) -> set[str]:
    """Return the topics to which the other members subscribe."""
    return {name for name, count in group.by_name.items() if count > (name in member.topics)}
