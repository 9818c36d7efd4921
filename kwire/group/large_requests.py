"""Requests with thousands of offsets or members: encoded in slices, decided as a whole.

A fenced commit writes no offset, a rejected deletion removes nothing, and readers never see a
partial change.
"""

from collections.abc import Generator, Iterator

import attrs
from immutables import Map

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import Decision, Moment
from kwire.coordinator.draft import Draft
from kwire.errors import GroupSubscribedToTopic
from kwire.group.commit_records import add_requested
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.model import ClassicGroup, ClassicGroupState, Member
from kwire.group.offsets import GroupChange
from kwire.group.records import (
    making_group_record,
    offset_tombstone,
    store,
)
from kwire.group.requests import (
    DECISION_OFFSETS_MAX,
    YIELD_OFFSETS,
    CommitTopicResponse,
    DeletedTopic,
    check_commit,
    delete_records,
    topics_in_use,
)
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard


@attrs.define(eq=False, repr=False)
class LargeCommit:
    """An OffsetCommit with many offsets."""

    request: OffsetCommitRequest
    draft: Draft[GroupChange]
    reply: OffsetCommitResponse = attrs.field(init=False)

    def encode(self, settings: GroupSettings) -> Iterator[None]:
        """Fill the draft and the reply, yielding every :data:`YIELD_OFFSETS` offsets."""
        self.reply = OffsetCommitResponse(topics=[])
        metadata_bytes_max = settings.offset_metadata_max_bytes
        for topic in self.request.topics:
            topic_response = CommitTopicResponse(
                name=topic.name, topic_id=topic.topic_id, partitions=[]
            )
            self.reply.topics.append(topic_response)
            for first in range(0, len(topic.partitions), YIELD_OFFSETS):
                some = topic.partitions[first : first + YIELD_OFFSETS]
                topic_response.partitions += add_requested(
                    self.draft, self.request, topic, some, metadata_bytes_max
                )
                yield

    def check(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Reject a client that may not commit, before its offsets are encoded."""
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        check_commit(shard, builder, self.request)
        builder.answer(ticket, None)
        return builder.build()

    def decide(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Commit all offsets, or raise."""
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        check_commit(shard, builder, self.request)
        builder.answer(ticket, self.reply)
        return builder.build()._replace(draft=self.draft)


TopicPartitions = dict[str, set[int]]
"""Partitions by topic."""


@attrs.define(eq=False, repr=False)
class LargeOffsetDeletion:
    """An OffsetDelete with many offsets; offsets of topics that the group still reads remain."""

    request: OffsetDeleteRequest
    draft: Draft[GroupChange]
    reply: OffsetDeleteResponse = attrs.field(factory=OffsetDeleteResponse)
    _read_topics: frozenset[str] = frozenset()
    _offsets: TopicPartitions = attrs.field(factory=dict)
    """The existing offsets, by topic, that have not been encoded for deletion yet."""

    def check(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Reject the request, or record which of the group's offsets exist."""
        self._read_topics = topics_in_use(shard, self.request)
        committed = shard.offsets.of(self.request.group_id)
        self._offsets = {topic: set(partitions) for topic, partitions in committed.items()}
        for topic, partition in shard.offsets.unstable_partitions(self.request.group_id):
            self._offsets.setdefault(topic, set()).add(partition)
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        builder.answer(ticket, None)
        return builder.build()

    def encode(self) -> Iterator[None]:
        """Fill the draft and the reply, yielding after each partition."""
        for topic in self.request.topics:
            is_read = topic.name in self._read_topics
            code = GroupSubscribedToTopic.code if is_read else 0
            offsets = set() if is_read else self._offsets.get(topic.name, set())
            answers: list[DeletedTopic.OffsetDeleteResponsePartition] = []
            self.reply.topics.append(DeletedTopic(name=topic.name, partitions=answers))
            for each in topic.partitions:
                partition = each.partition_index
                if partition in offsets:
                    offsets.remove(partition)
                    record = offset_tombstone(self.request.group_id, topic.name, partition)
                    change = self.draft.add(*store(record))
                    change.removed.setdefault(topic.name, []).append(partition)
                answers.append(
                    DeletedTopic.OffsetDeleteResponsePartition(
                        partition_index=partition, error_code=code
                    )
                )
                yield

    def decide(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Delete the offsets; answer False, without a change, if the read topics have changed."""
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        is_current = topics_in_use(shard, self.request) == self._read_topics
        builder.answer(ticket, is_current)
        if not (is_current and self.draft.count):
            return builder.build()
        return builder.build()._replace(draft=self.draft)


@attrs.define(eq=False, repr=False)
class LargeSync:
    """A leader's SyncGroup with the assignments of many members.

    The draft stays valid until the decision: while a generation waits for its assignments, neither
    its members nor their data change.
    """

    request: SyncGroupRequest
    draft: Draft[GroupChange]
    _group: ClassicGroup | None = None

    def check(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Store the group if it is waiting for these assignments."""
        self._group = self._waiting_group(shard)
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        builder.answer(ticket, None)
        return builder.build()

    def encode(self) -> Generator[None, None, None]:
        """Fill the draft with the record of the stable group, yielding after each member."""
        group = self._group
        if group is None:
            return
        assignments = {each.member_id: each.assignment for each in self.request.assignments}
        members: dict[str, Member] = {}
        for member_id, member in group.members.items():
            assignment = bytes(assignments.get(member_id, b""))
            members[member_id] = member._replace(assignment=assignment)
            yield
        group = group.transition_to(ClassicGroupState.STABLE, self.draft.wall_ms)
        record = yield from making_group_record(group._replace(members=Map(members)))
        self.draft.add(*store(record))

    def decide(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Decide as for any SyncGroup; the draft is used only if the group still waits for it."""
        is_current = self._group is not None and self._waiting_group(shard) is not None
        return shard.sync(self.request, moment, ticket, self.draft if is_current else None)

    def _waiting_group(self, shard: GroupShard) -> ClassicGroup | None:
        """Return the group if it is waiting for the assignments of this request, else None."""
        group, request = shard.groups.get(self.request.group_id), self.request
        is_waiting = (
            group is not None
            and group.state is ClassicGroupState.COMPLETING
            and group.generation == request.generation_id
            and group.leader == request.member_id
        )
        return group if is_waiting else None


@attrs.define(eq=False, repr=False)
class LargeDeletion:
    """A DeleteGroups of one group: the tombstones of its offsets, then the group's own."""

    group_id: str
    draft: Draft[GroupChange]
    missing: TopicPartitions = attrs.field(factory=dict)
    """The partitions to encode before the next :meth:`decide`."""
    _encoded: TopicPartitions = attrs.field(factory=dict)

    def encode(self) -> Iterator[None]:
        """Encode the missing tombstones, yielding after each."""
        missing, self.missing = self.missing, {}
        for topic, partitions in missing.items():
            for partition in partitions:
                self._add(topic, partition)
                yield

    def _add(self, topic: str, partition: int) -> None:
        record = offset_tombstone(self.group_id, topic, partition)
        change = self.draft.add(*store(record))
        change.removed.setdefault(topic, []).append(partition)
        self._encoded.setdefault(topic, set()).add(partition)

    def decide(self, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
        """Delete the group; answer False, without a change, if too many tombstones are missing."""
        builder = DecisionBuilder(moment, shard.settings(), ticket)
        tombstones = delete_records(shard, self.group_id, builder)
        missing = self._missing(shard)
        if sum(map(len, missing.values())) > DECISION_OFFSETS_MAX:
            self.missing = missing
            builder.timers.clear()
            builder.answer(ticket, False)
            return builder.build()
        for topic, partitions in missing.items():
            for partition in partitions:
                self._add(topic, partition)
        for tombstone in tombstones:
            self.draft.add(*store(tombstone)).tombstones.append(tombstone)
        builder.answer(ticket, True)
        return builder.build()._replace(draft=self.draft)

    def _missing(self, shard: GroupShard) -> TopicPartitions:
        """Return the group's partitions whose tombstones are not encoded yet."""
        encoded, nothing = self._encoded, frozenset[int]()
        missing = {
            topic: partitions.keys() - encoded.get(topic, nothing)
            for topic, partitions in shard.offsets.of(self.group_id).items()
        }
        for topic, partition in shard.offsets.unstable_partitions(self.group_id):
            if partition not in encoded.get(topic, nothing):
                missing.setdefault(topic, set()).add(partition)
        return missing
