"""The share groups of one partition of `__consumer_offsets`: their state and their decisions.

:class:`~kwire.group.shard.GroupShard` creates it with the first record of a share group, or the
first request about one. A group id belongs to one kind of group only.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import attrs

from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest as Request,
)
from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatResponse as Response,
)
from kwire.coordinator.decision import NOTHING, Decision, Moment, Record, Step
from kwire.group.consumer.model import LEAVE_EPOCH, Partitions
from kwire.group.consumer.target import Targets
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.kind_tables import TargetRecords
from kwire.group.share import heartbeat, initialization, records
from kwire.group.share.model import ShareGroup, SharePartitions
from kwire.group.share.target import ShareTables, computing

logger = logging.getLogger(__name__)


class ShareUpdate(NamedTuple):
    """Changes of a group in memory only, adopted with the decision that caused them."""

    group_id: str
    checked_version: object = None
    """The version of the topics when the metadata hash was compared, if it was."""
    complete_version: object = None
    """The version of the topics for which nothing is left to initialize, if that is so."""
    initializing_ms: int | None = None
    """The time of the decision, if it changed the share partitions."""


class Initialization(NamedTuple):
    """Share partitions whose state the persister must initialize."""

    group_id: str
    epoch: int
    """The group epoch, which becomes the state epoch."""
    numbers: Mapping[bytes, frozenset[int]]
    """Partitions by topic id."""


class Beaten(NamedTuple):
    """The result of a heartbeat: its response, and the work to do afterwards."""

    response: Response
    initialization: Initialization | None = None


@attrs.define(eq=False, repr=False)
class ShareShard(ShareTables):
    """The share groups of one partition."""

    # Records

    def apply(self, record: Record) -> None:
        records.apply(self.groups, record)

    def _adopt(self, update: ShareUpdate) -> None:
        group = self.groups.get(update.group_id)
        if group is None:
            return
        if update.checked_version is not None:
            group.checked_version = update.checked_version
        if update.initializing_ms is not None:
            group.initializing_ms = update.initializing_ms
        group.complete_version = update.complete_version

    # Targets

    @property
    def target_records(self) -> TargetRecords[Partitions]:
        return records

    def computing_target(self, group: ShareGroup) -> Generator[None, None, Targets]:
        return computing(group, {}, self.topics())

    # Members

    def heartbeat(
        self, group: ShareGroup, request: Request, client: Client, builder: DecisionBuilder
    ) -> Decision:
        """Decide on a heartbeat: a member joins, stays, changes or leaves."""
        if request.member_epoch == LEAVE_EPOCH:
            member = group.require_member(request.member_id)
            logger.info("member left group=%s member=%s", group.group_id, member.member_id)
            heartbeat.remove(self, builder, group, member)
            reply = Response(
                member_id=member.member_id, member_epoch=LEAVE_EPOCH, heartbeat_interval_ms=0
            )
            builder.answer(builder.ticket, Beaten(reply))
            return builder.build()
        change = heartbeat.beat(self, builder, group, request, client)
        missing = change.to_initialize
        work = None
        if missing:
            numbers = {topic_id: state.partitions for topic_id, state in missing.items()}
            work = Initialization(group.group_id, change.epoch, numbers)
        builder.answer(builder.ticket, Beaten(heartbeat.response(request, change), work))
        version, current = self.topics().version, group.partitions
        is_complete = not missing and (current is None or not current.initializing)
        update = ShareUpdate(
            group.group_id,
            checked_version=version,
            complete_version=version if is_complete else None,
            initializing_ms=builder.moment.wall_ms if missing else None,
        )
        adoption = partial(self._adopt, update)
        return self.build(builder, group.group_id, adoption, starts_target=change.starts_target)

    def _wait_for_members(self, group_id: str, moment: Moment) -> Decision:
        builder = DecisionBuilder(moment, self.settings())
        settings = self.settings_of(group_id)
        for member_id in self.groups[group_id].members:
            heartbeat.start_session(builder, group_id, member_id, settings)
        return builder.build()

    def due(self, group_id: str, member_id: str, moment: Moment) -> Decision:
        """Fence a member whose session has expired."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return NOTHING
        logger.info("member fenced group=%s member=%s reason=session", group_id, member_id)
        builder = DecisionBuilder(moment, self.settings())
        heartbeat.remove(self, builder, group, member)
        return builder.build()

    def tombstones(self, group_id: str) -> list[Record]:
        """Return the tombstones that delete a group without members."""
        return list(records.group_tombstones(group_id))

    # Share partitions

    def write_partitions(
        self, builder: DecisionBuilder, group_id: str, partitions: SharePartitions
    ) -> Decision:
        """Return the decision that replaces the record of a group's share partitions."""
        builder.records.append(records.partitions_record(group_id, partitions, self.topics()))
        update = ShareUpdate(group_id, initializing_ms=builder.moment.wall_ms)
        return builder.build(partial(self._adopt, update))

    def forget_topics(self, is_gone: Callable[[bytes], bool]) -> Iterator[Step]:
        """Yield the steps that remove deleted topics from the share partitions of all groups."""
        for group_id in list(self.groups):
            yield partial(self._forget_topics, group_id, is_gone)

    def _forget_topics(
        self, group_id: str, is_gone: Callable[[bytes], bool], moment: Moment
    ) -> Decision:
        group = self.groups.get(group_id)
        current = None if group is None else group.partitions
        if current is None:
            return NOTHING
        named = [*current.initializing, *current.initialized, *current.deleting]
        deleted_ids = [topic_id for topic_id in named if is_gone(topic_id)]
        if not deleted_ids:
            return NOTHING
        builder = DecisionBuilder(moment, self.settings())
        return self.write_partitions(builder, group_id, initialization.forget(current, deleted_ids))
