"""All groups of one partition of `__consumer_offsets`: a decider and its state.

It serves classic groups; a :class:`ConsumerShard` has the consumer groups, a :class:`ShareShard`
the share groups and a :class:`StreamsShard` the streams groups. Invariants: a group id is either in
``groups`` or in one of these shards; the ``expiry`` deadline is set while there is a group whose
offsets may expire.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple

import attrs

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.codec.messages.offset_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
)
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import (
    NOTHING,
    Answer,
    Decision,
    Moment,
    Record,
    Step,
)
from kwire.errors import InconsistentGroupProtocol, KafkaError, UnknownMemberId
from kwire.group import classic, expiry, rebalance
from kwire.group.commit_records import parse_commit
from kwire.group.decision_builder import Adoption, Client, DecisionBuilder, join_error
from kwire.group.group_tables import GroupTables
from kwire.group.model import ClassicGroup, ClassicGroupState, MemberMove, ProtocolChange
from kwire.group.offsets import GroupChange
from kwire.group.records import (
    group_from,
    group_record,
)
from kwire.records.header import NO_PRODUCER

if TYPE_CHECKING:
    from kwire.coordinator.draft import Draft
    from kwire.group.consumer.model import Partitions
    from kwire.group.kind_tables import TargetChange
    from kwire.group.streams.tasks import TaskSet

Args = TypeVarTuple("Args")

logger = logging.getLogger(__name__)

_EXPIRY: Final = ("expiry",)


@attrs.define(eq=False, repr=False)
class GroupShard(GroupTables):
    """The state of one partition; requests are methods that return a decision."""

    _is_loaded: bool = attrs.field(default=False, init=False)

    # Records

    def apply_stored(self, key: bytes, value: bytes | None) -> bool:
        commit = parse_commit(key, value)
        if commit is None:
            return False
        group_id, topic, partition, packed = commit
        self.offsets.commit(group_id, topic, partition, packed)
        self._exists(group_id)
        return True

    def apply(self, record: Record, producer_id: int = NO_PRODUCER) -> None:
        match record.key:
            case OffsetCommitKey():
                self._apply_offset(record, producer_id)
            case GroupMetadataKey(group=group_id):
                self._apply_group(group_id, record.value)
            case LegacyOffsetCommitKey():
                logger.debug("offset in a legacy format ignored group=%s", record.key.group)
            case _:
                self._apply_to_shard(record)

    def apply_change(
        self,
        change: "GroupChange | ProtocolChange | MemberMove | TargetChange[Partitions] | "
        "TargetChange[TaskSet]",
        producer_id: int = NO_PRODUCER,
    ) -> None:
        if isinstance(change, MemberMove):
            change.group.revision += 1
            change.group.apply_member(change.member)
            return
        if isinstance(change, ProtocolChange):
            self.change_protocol(change)
            for record in change.records:
                self.apply(record)
            return
        if not isinstance(change, GroupChange):
            self._apply_target(change)
            return
        group_id = change.group_id
        if change.committed:
            if producer_id == NO_PRODUCER:
                self.offsets.commit_all(group_id, change.committed)
            else:
                self.offsets.hold_all(group_id, change.committed, producer_id)
            self._exists(group_id)
        self.offsets.remove_all(group_id, change.removed)
        for tombstone in change.tombstones:
            self.apply(tombstone)

    # Any: what a target has of each member depends on the kind of group.
    def _apply_target(self, change: "TargetChange[Any]") -> None:
        group = self.assigned_group(change.group_id)
        assert group is not None
        self.of_kind(group.kind).apply_target(change)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed=committed)

    def adopt(self, state: tuple[ClassicGroup | Adoption, ...] | None) -> None:
        for change in state or ():
            if isinstance(change, ClassicGroup):
                self._set(change)
            else:
                change()

    def _apply_offset(self, record: Record, producer_id: int) -> None:
        self.offsets.apply(record.key, record.value, producer_id)
        if record.value is not None:
            self._exists(record.key.group)

    def _exists(self, group_id: str) -> None:
        """Create the group if it does not exist: a group may commit offsets without any members."""
        if not self.has_group(group_id):
            self.groups[group_id] = ClassicGroup(group_id=group_id)

    def _apply_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is None:
            self.groups.pop(group_id, None)
        else:
            self._set(group_from(group_id, value))

    def _set(self, group: ClassicGroup) -> None:
        old = self.groups.get(group.group_id)
        self.groups[group.group_id] = group
        if (
            group.state is ClassicGroupState.STABLE
            and old is not None
            and old.state is ClassicGroupState.COMPLETING
        ):
            self.on_rebalance("classic")

    def _apply_to_shard(self, record: Record) -> None:
        """Apply a record of another kind of group, which may replace a classic group."""
        group_id = record.key.group_id
        if record.value is not None:
            self.groups.pop(group_id, None)
        shard = self.shard_of(record.key)
        group = shard.groups.get(group_id)
        next_epoch = None if group is None else group.epoch + 1
        shard.apply(record)
        # A classic group that becomes a consumer group continues with its generation.
        if self._is_loaded and group is not None and group.epoch == next_epoch:
            self.on_rebalance(group.kind)
        if self.offsets.of(group_id):
            self._exists(group_id)

    # Deadlines

    def on_loaded(self) -> Iterator[Step]:
        """Yield the steps after a load; they restart the session of each loaded member."""
        self._is_loaded = True
        for group_id in list(self.groups):
            yield partial(self._wait_for_members, group_id)
        if self._consumer is not None:
            yield from self._consumer.on_loaded()
        if self._share is not None:
            yield from self._share.on_loaded()
        if self._streams is not None:
            yield from self._streams.on_loaded()
        if self.has_groups or self.share_groups:
            yield self._check_topics

    def on_next_epoch(self) -> None:
        """Do nothing: members and their waiting requests do not depend on the epoch."""

    def _wait_for_members(self, group_id: str, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.settings())
        group = self.groups[group_id]
        for member in group.members_by_arrival():
            builder.restart_session(group, member)
        if len(group.members) > builder.settings.group_max_size:
            group = rebalance.prepare(builder, group, "group is over its maximum size")
        return builder.build(group)

    def _check_topics(self, moment: Moment) -> Decision:
        """Remove what is left of topics that were deleted before this node led the partition."""
        builder = DecisionBuilder(moment, self.settings())
        if self.has_groups:
            self.schedule_expiry(builder)
        return builder.build(steps=self.remove_missing_topics())

    def due(self, name: Hashable, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.settings())
        match name:
            case ("session", str(group_id), str(member_id)):
                return self._of(builder, group_id, classic.on_session_timeout, member_id)
            case ("join", str(group_id)):
                return self._of(builder, group_id, rebalance.on_join_timeout)
            case ("sync", str(group_id)):
                return self._of(builder, group_id, rebalance.on_sync_timeout)
            case ("share-session", str(group_id), str(member_id)):
                return self.share.due(group_id, member_id, moment)
            case ("streams-delay", str(group_id)):
                return self.streams.on_delay_over(group_id, moment)
            case ("streams-session" | "streams-revocation" as kind, str(group_id), str(member_id)):
                return self.streams.due(kind, group_id, member_id, moment)
            case (str(kind), str(group_id), str(member_id)):
                return self.consumer.due(kind, group_id, member_id, moment)
        return self._expire(builder)

    def remove_deleted_topics(self, names: Mapping[bytes, str]) -> Iterator[Step]:
        """Remove the groups' data about deleted topics; ``names`` maps their ids to their names."""
        yield from expiry.remove_deleted_topics(self, names)
        if self._share is not None:
            yield from self._share.forget_topics(names.__contains__)

    def remove_missing_topics(self) -> Iterator[Step]:
        """Remove offsets and share partitions of topics that are no longer in the metadata."""
        yield from expiry.remove_missing_topics(self)
        if self._share is not None:
            yield from self._share.forget_topics(lambda t: self.topics().name_of(t) is None)

    def _of(
        self,
        builder: DecisionBuilder,
        group_id: str,
        decide: Callable[[DecisionBuilder, ClassicGroup, *Args], ClassicGroup],
        *args: *Args,
    ) -> Decision:
        group = self.groups.get(group_id)
        return NOTHING if group is None else builder.build(decide(builder, group, *args))

    def _expire(self, builder: DecisionBuilder) -> Decision:
        """Return a decision whose steps remove expired offsets, and schedule the next expiry."""
        if not self.has_groups:
            return NOTHING
        self.schedule_expiry(builder)
        return builder.build(steps=expiry.expire(self))

    def schedule_expiry(self, builder: DecisionBuilder) -> None:
        interval_ms = builder.settings.offsets_retention_check_interval_ms
        builder.timers.append((_EXPIRY, builder.moment.now + interval_ms / 1000))

    # Membership

    def join(
        self, request: JoinGroupRequest, client: Client, moment: Moment, ticket: int
    ) -> Decision:
        builder = DecisionBuilder(moment, self.settings(), ticket)
        group, consumer = self.groups.get(request.group_id), self.consumer_group(request.group_id)
        if consumer is not None and consumer.members:
            return self.consumer.join(consumer, request, client, builder, self.new_id())
        streams = self.streams_group(request.group_id)
        if self.share_group(request.group_id) is not None or (
            streams is not None and streams.members
        ):
            builder.answer(ticket, join_error(InconsistentGroupProtocol))
            return builder.build()
        if group is None and request.member_id:
            builder.answer(ticket, join_error(UnknownMemberId, request.member_id))
            return builder.build()
        fresh_id = "" if request.member_id else self._fresh_id(request, client)
        if group is not None:
            return builder.build(classic.join(builder, group, request, client, fresh_id))
        created = self._create_group(builder, request.group_id)
        joined = classic.join(builder, created, request, client, fresh_id)
        if joined is created:
            return builder.build()
        former: list[Record] = []
        if (assigned := consumer or streams) is not None:
            former = self.of_kind(assigned.kind).tombstones(request.group_id)
        builder.records[:0] = [*former, group_record(created)]
        return builder.build(joined)

    def _fresh_id(self, request: JoinGroupRequest, client: Client) -> str:
        return f"{request.group_instance_id or client.client_id}-{self.new_id()}"

    def _create_group(self, builder: DecisionBuilder, group_id: str) -> ClassicGroup:
        if not self.has_groups:
            self.schedule_expiry(builder)
        return ClassicGroup(group_id=group_id, since_ms=builder.moment.wall_ms)

    def sync(
        self,
        request: SyncGroupRequest,
        moment: Moment,
        ticket: int,
        draft: "Draft[GroupChange] | None" = None,
    ) -> Decision:
        """Decide on a SyncGroup; ``draft`` has the leader's record if the record is large."""
        if (consumer := self.consumer_group(request.group_id)) is not None:
            builder = DecisionBuilder(moment, self.settings(), ticket)
            return self.consumer.sync(consumer, request, builder)
        builder = DecisionBuilder(moment, self.settings(), ticket, draft=draft)
        group = self._require_group(request.group_id)
        decision = builder.build(classic.sync(builder, group, request))
        if draft is None and not decision.records:
            return decision
        return decision._replace(otherwise=partial(self._fail_assignments, group, ticket))

    def _fail_assignments(
        self, group: ClassicGroup, ticket: int, error: KafkaError, moment: Moment
    ) -> Decision:
        builder = DecisionBuilder(moment, self.settings(), ticket)
        return builder.build(rebalance.fail_assignments(builder, group, type(error)))

    def heartbeat(self, request: HeartbeatRequest, moment: Moment, ticket: int) -> Decision:
        builder = DecisionBuilder(moment, self.settings(), ticket)
        if (consumer := self.consumer_group(request.group_id)) is not None:
            return self.consumer.classic_heartbeat(consumer, request, builder)
        group = self._require_group(request.group_id)
        return builder.build(classic.heartbeat(builder, group, request))

    def leave(self, request: LeaveGroupRequest, moment: Moment, ticket: int) -> Decision:
        group = self.groups.get(request.group_id)
        if (consumer := self.consumer_group(request.group_id)) is not None:
            builder = DecisionBuilder(moment, self.settings(), ticket)
            return self.consumer.leave(consumer, request, builder)
        if group is None:
            strangers = [
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=UnknownMemberId.code,
                )
                for member in request.members
            ]
            return Decision(answers=(Answer(ticket, LeaveGroupResponse(members=strangers)),))
        builder = DecisionBuilder(moment, self.settings(), ticket)
        return builder.build(classic.leave(builder, group, request))

    def _require_group(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownMemberId
        return group
