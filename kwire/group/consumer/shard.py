"""The consumer groups of one partition of `__consumer_offsets`: their state and their decisions.

:class:`~kwire.group.shard.GroupShard` creates it with the first record of a consumer group, or the
first request about one. A group id belongs either to a consumer group here or to a classic group
there.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import attrs

from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse as Response,
)
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import NOTHING, Answer, Decision, Moment, Record, Step
from kwire.errors import GroupIdNotFound, KafkaError, RebalanceInProgress
from kwire.group.consumer import (
    classic_members,
    fencing,
    heartbeat,
    migration,
    records,
)
from kwire.group.consumer.classic_members import JoinAttempt
from kwire.group.consumer.large_migration import LargeMigration, is_large, large_downgrade
from kwire.group.consumer.member_update import MemberUpdate, preferred_assignor, rank_assignors
from kwire.group.consumer.model import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
)
from kwire.group.consumer.regexes import Resolution
from kwire.group.consumer.target import ConsumerTables, Targets, computing
from kwire.group.decision_builder import Client, DecisionBuilder, join_error
from kwire.group.kind_tables import TargetRecords
from kwire.group.model import ClassicGroup

logger = logging.getLogger(__name__)


class GroupUpdate(NamedTuple):
    """Changes of a group in memory only, adopted with the decision that caused them."""

    group_id: str
    checked_version: object
    """The version of the topics when the metadata hash was compared."""
    waiting: "WaitingJoin | None" = None
    """A join to answer once the group's first target is installed."""
    is_resolving: bool = False
    """True if the decision starts to resolve regular expressions."""
    rejoining: tuple[str, bool] | None = None
    """A member of the classic protocol, and whether it was asked to rejoin or has rejoined."""


class WaitingJoin(NamedTuple):
    """A join of a large group that does not have a target yet."""

    request: Request
    client: Client
    ticket: int


@attrs.define(eq=False, repr=False)
class ConsumerShard(ConsumerTables):
    """The consumer groups of one partition."""

    _resolving: set[str] = attrs.field(factory=set, init=False)
    """The groups whose regular expressions are being resolved."""
    _waiting: dict[str, list[WaitingJoin]] = attrs.field(factory=dict, init=False)
    """The joins that wait for a large target, by group."""

    # Records

    def apply(self, record: Record) -> None:
        records.apply(self.groups, record)

    def _adopt(self, update: GroupUpdate) -> None:
        group = self.groups.get(update.group_id)
        if group is not None:
            group.checked_version = update.checked_version
            if update.rejoining is not None:
                member_id, is_asked = update.rejoining
                if is_asked:
                    group.rejoining.add(member_id)
                else:
                    group.rejoining.discard(member_id)
        if update.is_resolving:
            self._resolving.add(update.group_id)
        if update.waiting is not None:
            self._waiting.setdefault(update.group_id, []).append(update.waiting)

    # Regular expressions

    def finish_resolution(self, group_id: str) -> None:
        """Allow the regular expressions of the group to be resolved again."""
        self._resolving.discard(group_id)

    # Large targets

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Return the assignor that most members prefer, by default the broker's."""
        return preferred_assignor(rank_assignors(group.assignors), self.settings_of(group.group_id))

    @property
    def target_records(self) -> TargetRecords[Partitions]:
        return records

    def computing_target(self, group: ConsumerGroup) -> Generator[None, None, Targets]:
        return computing(group, {}, self.topics(), self.assignor_of(group))

    def finish_target(self, group_id: str) -> Iterator[Step]:
        """Yield the steps that answer the joins that waited for a large target."""
        yield from super().finish_target(group_id)
        for waiting in self._waiting.pop(group_id, ()):
            yield partial(self._answer_waiting, waiting)

    def _answer_waiting(self, waiting: WaitingJoin, moment: Moment) -> Decision:
        builder, request = DecisionBuilder(moment, self.settings(), waiting.ticket), waiting.request
        group = self.groups.get(request.group_id)
        if group is not None and request.member_id in group.members:
            request.instance_id = None  # The first decision has already given it to the member.
        try:
            return self.heartbeat(group, request, waiting.client, builder)
        except KafkaError as error:
            reply = Response(error_code=error.code, member_epoch=0, heartbeat_interval_ms=0)
            return Decision(answers=(Answer(waiting.ticket, reply),))

    # Requests

    def heartbeat(
        self,
        group: ConsumerGroup | None,
        request: Request,
        client: Client,
        builder: DecisionBuilder,
    ) -> Decision:
        """Decide on a heartbeat: a member joins, stays, changes or leaves.

        ``group`` is the request's group, None if it does not exist. The builder may already have
        records that create it.
        """
        if group is None:
            kind = "Group" if heartbeat.leaves(request) else "Consumer group"
            raise GroupIdNotFound(f"{kind} {request.group_id} not found.")
        if heartbeat.leaves(request):
            member = heartbeat.leave(builder, group, request)
            return builder.build() if member is None else self._remove(builder, group, (member,))
        update = heartbeat.beat(self, builder, group, request, client)
        waiting = None
        if update.waits_for_target:
            waiting = WaitingJoin(request, client, builder.ticket)
        return self._write_update(builder, update, client, waiting)

    def _write_update(
        self,
        builder: DecisionBuilder,
        update: MemberUpdate,
        client: Client,
        waiting: WaitingJoin | None = None,
        rejoining: tuple[str, bool] | None = None,
    ) -> Decision:
        """Return the decision that writes a member's update, and starts the work that follows."""
        group_id = update.group.group_id
        steps: Iterable[Step] = ()
        resolves = bool(update.expressions) and group_id not in self._resolving
        if resolves:
            may_describe = client.may_describe
            steps = Resolution(self, group_id, update.expressions, may_describe).steps()
        state = GroupUpdate(group_id, self.topics().version, waiting, resolves, rejoining)
        adoption = partial(self._adopt, state)
        return self.build(builder, group_id, adoption, steps, starts_target=update.starts_target)

    def _remove(
        self,
        builder: DecisionBuilder,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        attempts: int = 0,
    ) -> Decision:
        """Remove members; the group becomes a classic group if only such members are left."""
        if not members:
            return builder.build()
        if migration.may_downgrade(group, members, self.settings_of(group.group_id)):
            if is_large(len(group.members), attempts):
                ids = [member.member_id for member in members]
                again = partial(self._remove_again, builder, group.group_id, ids, attempts + 1)
                return Decision(steps=large_downgrade(self, builder, group, members, again).steps())
            return builder.build(migration.downgrade(builder, group, members, self.topics()))
        fencing.remove_members(builder, group, members, self.topics())
        return builder.build()

    def _remove_again(
        self,
        former: DecisionBuilder,
        group_id: str,
        ids: Sequence[str],
        attempts: int,
        moment: Moment,
    ) -> Decision:
        """Remove the given members that are still in the group, because the group has changed."""
        builder = DecisionBuilder(moment, self.settings(), former.ticket, answers=former.answers)
        group = self.groups.get(group_id)
        if group is None:
            return builder.build()
        members = [member for each in ids if (member := group.members.get(each)) is not None]
        return self._remove(builder, group, members, attempts)

    def upgrade(self, builder: DecisionBuilder, classic: ClassicGroup) -> ConsumerGroup:
        """Return the consumer group that a classic group with members becomes."""
        settings = self.settings_of(classic.group_id)
        return migration.upgrade(builder, classic, settings, self.topics())

    # Members that use the classic protocol

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: Client,
        builder: DecisionBuilder,
        fresh_id: str,
    ) -> Decision:
        """Decide on a JoinGroup to a consumer group; ``fresh_id`` is for a member without an id."""
        return self._join(group, JoinAttempt(request, client, fresh_id), builder)

    def _join(
        self, group: ConsumerGroup, attempt: JoinAttempt, builder: DecisionBuilder
    ) -> Decision:
        again = partial(self._join_again, attempt, builder)
        update, classic = classic_members.join(self, builder, group, attempt, again)
        if isinstance(classic, LargeMigration):
            return Decision(steps=classic.steps())
        if classic is not None:
            return builder.build(classic)
        if update is None:
            return builder.build()
        rejoining = update.new.member_id, False
        return self._write_update(builder, update, attempt.client, rejoining=rejoining)

    def _join_again(
        self, attempt: JoinAttempt, former: DecisionBuilder, moment: Moment
    ) -> Decision:
        """Decide anew on a JoinGroup whose group changed.

        If the group is classic or empty by now, the client rejoins.
        """
        builder = DecisionBuilder(moment, self.settings(), former.ticket)
        request = attempt.request
        group = self.groups.get(request.group_id)
        if group is None or not group.members:
            builder.answer(former.ticket, join_error(RebalanceInProgress, request.member_id))
            return builder.build()
        next_attempt = attempt._replace(former_count=attempt.former_count + 1)
        return self._join(group, next_attempt, builder)

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, builder: DecisionBuilder
    ) -> Decision:
        """Decide on a SyncGroup to a consumer group."""
        has_to_rejoin = classic_members.sync(self, builder, group, request)
        return self._ask_to_rejoin(builder, group, request.member_id, has_to_rejoin)

    def classic_heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, builder: DecisionBuilder
    ) -> Decision:
        """Decide on a Heartbeat to a consumer group."""
        has_to_rejoin = classic_members.heartbeat(self, builder, group, request)
        return self._ask_to_rejoin(builder, group, request.member_id, has_to_rejoin)

    def _ask_to_rejoin(
        self, builder: DecisionBuilder, group: ConsumerGroup, member_id: str, has_to_rejoin: bool
    ) -> Decision:
        """Start the rebalance timeout of a member that was just asked to rejoin."""
        if not has_to_rejoin or member_id in group.rejoining:
            return builder.build()
        fencing.start_rejoin(builder, group.group_id, group.members[member_id])
        state = GroupUpdate(group.group_id, group.checked_version, rejoining=(member_id, True))
        return builder.build(partial(self._adopt, state))

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, builder: DecisionBuilder
    ) -> Decision:
        """Decide on a LeaveGroup to a consumer group."""
        return self._remove(builder, group, classic_members.leave(builder, group, request))

    # Deadlines

    def _wait_for_members(self, group_id: str, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.settings())
        group, settings = self.groups[group_id], self.settings_of(group_id)
        group.index_owners()
        for member in group.members.values():
            fencing.start_session(builder, group_id, member, settings)
            if member.state == MemberState.UNREVOKED and member.classic is None:
                fencing.start_revocation(builder, group_id, member)
        return builder.build()

    def due(self, kind: str, group_id: str, member_id: str, moment: Moment) -> Decision:
        """Fence a member that has passed a deadline."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return NOTHING
        if kind == "revocation" and (member.state != MemberState.UNREVOKED or member.epoch < 0):
            return NOTHING
        logger.info("member fenced group=%s member=%s reason=%s", group_id, member_id, kind)
        builder = DecisionBuilder(moment, self.settings())
        return self._remove(builder, group, (member,))

    def tombstones(self, group_id: str) -> list[Record]:
        """Return the tombstones that delete a group."""
        return list(records.group_tombstones(self.groups[group_id]))
