"""The streams groups of one partition of `__consumer_offsets`: their state and their decisions.

:class:`~kwire.group.shard.GroupShard` creates it with the first record of a streams group, or the
first request about one. A group id belongs to one kind of group only.
"""

import logging
from collections.abc import Generator, Sequence
from functools import partial
from typing import NamedTuple

import attrs

from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatResponse as Response,
)
from kwire.coordinator.decision import NOTHING, Decision, Moment, Record
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.kind_tables import AT_ONCE, TargetRecords
from kwire.group.streams import heartbeat, records, timers
from kwire.group.streams.configuration import Configuration, InternalTopic
from kwire.group.streams.heartbeat import Beat, Matched
from kwire.group.streams.model import MemberState, StreamsGroup, StreamsMember
from kwire.group.streams.target import StreamsTables, Targets, computing, target_size
from kwire.group.streams.tasks import TaskSet
from kwire.group.streams.topology import Topology

logger = logging.getLogger(__name__)


class StreamsUpdate(NamedTuple):
    """Changes of a group in memory only, adopted with the decision that caused them."""

    group_id: str
    configuration: Configuration | None = None
    """The topology with its topics, if they were matched."""
    checked_version: object = None
    """The version of the topics in which they were matched."""
    endpoint_epoch: int | None = None
    shutdown_by: str | None = None
    """A member that asked all others to shut down."""
    is_delayed: bool | None = None


class Endpoints(NamedTuple):
    """The members with an endpoint, whose partitions a response lists."""

    members: Sequence[StreamsMember]
    topology: Topology


class Beaten(NamedTuple):
    """The result of a heartbeat: its response, and the work to do afterwards."""

    response: Response
    missing: Sequence[InternalTopic] = ()
    """Internal topics that must be created."""
    endpoints: Endpoints | None = None
    """The endpoints to add to the response, if the member does not know them."""


@attrs.define(eq=False, repr=False)
class StreamsShard(StreamsTables):
    """The streams groups of one partition."""

    # Records

    def apply(self, record: Record) -> None:
        records.apply(self.groups, record)

    def _adopt(self, update: StreamsUpdate) -> None:
        group = self.groups.get(update.group_id)
        if group is None:
            return
        if update.configuration is not None:
            group.configuration = update.configuration
            group.checked_version = update.checked_version
        if update.endpoint_epoch is not None:
            group.endpoint_epoch = update.endpoint_epoch
        if update.shutdown_by is not None and group.members:
            group.shutdown_by = group.shutdown_by or update.shutdown_by
        if update.is_delayed is not None:
            group.is_delayed = update.is_delayed

    # Targets

    @property
    def target_records(self) -> TargetRecords[TaskSet]:
        return records

    def computing_target(self, group: StreamsGroup) -> Generator[None, None, Targets]:
        assert group.topology is not None
        assert group.configuration is not None
        standby_count = self.settings_of(group.group_id).standby_count
        return computing(group, {}, group.topology, group.configuration, standby_count)

    # Members

    def heartbeat(
        self,
        group: StreamsGroup,
        request: Request,
        client: Client,
        builder: DecisionBuilder,
        matched: Matched | None = None,
        *,
        may_wait: bool = False,
    ) -> Decision:
        """Decide on a heartbeat of a member that joins, stays or changes.

        As in Kafka, the epoch of the endpoints begins at 0 after the join that creates the group.
        With ``may_wait``, raise :class:`Unmatched` if that is to be done before.
        """
        change = heartbeat.beat(self, builder, group, request, client, matched, may_wait=may_wait)
        epoch = group.endpoint_epoch
        if change.new.endpoint is not None and (
            request.member_epoch == heartbeat.JOIN_EPOCH or change.has_new_tasks
        ):
            epoch += 1
        is_new = group.group_id not in self.groups
        reply = heartbeat.response(request, change, 0 if is_new else epoch)
        endpoints = None
        if epoch != request.endpoint_information_epoch:
            endpoints = _endpoints(group, change)
        missing = change.configuration.missing
        builder.answer(builder.ticket, Beaten(reply, missing, endpoints))
        update = StreamsUpdate(
            group.group_id,
            change.configuration,
            self.topics().version,
            endpoint_epoch=None if is_new else epoch,
            shutdown_by=change.new.member_id if request.shutdown_application else None,
            is_delayed=change.is_delayed,
        )
        adoption = partial(self._adopt, update)
        return self.build(builder, group.group_id, adoption, starts_target=change.starts_target)

    def leave(self, group: StreamsGroup, request: Request, builder: DecisionBuilder) -> Decision:
        """Decide on the last heartbeat of a member."""
        member = group.require_member(request.member_id)
        logger.info("member left group=%s member=%s", group.group_id, member.member_id)
        reply = Response(
            member_id=member.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
            task_offset_interval_ms=0,
            endpoint_information_epoch=0,
        )
        builder.answer(builder.ticket, Beaten(reply))
        _remove(builder, group, member)
        shutdown_by = member.member_id if request.shutdown_application else None
        update = StreamsUpdate(group.group_id, shutdown_by=shutdown_by)
        return builder.build(partial(self._adopt, update))

    # Deadlines

    def _wait_for_members(self, group_id: str, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.settings())
        group, settings = self.groups[group_id], self.settings_of(group_id)
        group.index_owners()
        for member_id, member in group.members.items():
            timers.start_session(builder, group_id, member_id, settings)
            if member.state == MemberState.UNREVOKED:
                timers.start_revocation(builder, group_id, member)
        return builder.build()

    def due(self, kind: str, group_id: str, member_id: str, moment: Moment) -> Decision:
        """Fence a member that has passed a deadline."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return NOTHING
        is_of_revocation = kind == "streams-revocation"
        if is_of_revocation and member.state != MemberState.UNREVOKED:
            return NOTHING
        reason = "revocation" if is_of_revocation else "session"
        logger.info("member fenced group=%s member=%s reason=%s", group_id, member_id, reason)
        builder = DecisionBuilder(moment, self.settings())
        _remove(builder, group, member)
        return builder.build()

    def on_delay_over(self, group_id: str, moment: Moment) -> Decision:
        """Compute the first target of a group."""
        group = self.groups.get(group_id)
        if group is None:
            return NOTHING
        builder = DecisionBuilder(moment, self.settings())
        configuration, topology = group.configuration, group.topology
        settings = self.settings_of(group_id)
        starts_target = False
        if (
            group.members
            and configuration is not None
            and topology is not None
            and group.assignment_epoch < group.epoch
            and not group.has_recent_target(settings.assignment_interval_ms, moment.wall_ms)
        ):
            if target_size(group, configuration, settings.standby_count) > AT_ONCE:
                starts_target = True
            else:
                heartbeat.compute_target(
                    builder,
                    group,
                    {},
                    topology,
                    configuration,
                    settings.standby_count,
                    group.epoch,
                )
        adoption = partial(self._adopt, StreamsUpdate(group_id, is_delayed=False))
        return self.build(builder, group_id, adoption, starts_target=starts_target)

    def tombstones(self, group_id: str) -> list[Record]:
        """Return the tombstones that delete a group without members."""
        return list(records.group_tombstones(group_id))


def _endpoints(group: StreamsGroup, change: Beat) -> Endpoints:
    """Return the members with an endpoint, the heartbeat's member last."""
    members = [
        member
        for member_id, member in group.members.items()
        if member.endpoint is not None and member_id != change.new.member_id
    ]
    if change.new.endpoint is not None:
        members.append(change.new)
    return Endpoints(members, change.topology)


def _remove(builder: DecisionBuilder, group: StreamsGroup, member: StreamsMember) -> None:
    """Remove a member and bump the group epoch."""
    group_id = group.group_id
    builder.records.extend(records.member_tombstones(group_id, member.member_id))
    builder.records.append(
        records.epoch_record(
            group_id,
            group.epoch + 1,
            group.metadata_hash,
            group.validated_epoch,
            group.assignment_configs,
        )
    )
    timers.end_member_timers(builder, group_id, member.member_id)
