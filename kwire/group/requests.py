"""Requests about committed offsets and about whole groups.

A function that changes something returns a decision on a :class:`~kwire.group.shard.GroupShard`, as
for membership requests; a function that only reads returns a plain value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import attrs

from kwire.codec.messages.describe_groups import DescribeGroupsResponse
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kwire.codec.messages.offset_fetch import OffsetFetchResponse
from kwire.coordinator.decision import Decision, Moment, Record, TransactionalProducer
from kwire.coordinator.draft import Draft
from kwire.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from kwire.group.commit_records import CommitTopic, add_requested
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.model import CONSUMER, SHARE, STREAMS, ClassicGroup, ClassicGroupState
from kwire.group.offsets import Committed, GroupChange, Packed, is_of_deleted_topic
from kwire.group.records import group_tombstone, offset_tombstone, subscribed_topics
from kwire.group.shard import GroupShard

if TYPE_CHECKING:
    from kwire.group.consumer.model import ConsumerGroup
    from kwire.group.share.model import ShareGroup
    from kwire.group.streams.model import StreamsGroup

    AnyGroup = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup

CommitTopicResponse = OffsetCommitResponse.OffsetCommitResponseTopic
FetchedTopic = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
FetchedPartition = FetchedTopic.OffsetFetchResponsePartitions
DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
DescribedGroup = DescribeGroupsResponse.DescribedGroup

YIELD_OFFSETS: Final = 32
"""The number of offsets between two yields of a long response, a few microseconds each."""
DECISION_OFFSETS_MAX: Final = 200
"""The most offsets that one decision encodes, about 2 ms of work."""
DECISION_MEMBERS_MAX: Final = 200
"""The most members that may leave or be assigned partitions in one decision."""


# Offsets


def is_large(request: OffsetCommitRequest | OffsetDeleteRequest) -> bool:
    """Return whether a request has so many offsets that it is encoded in advance."""
    return sum(len(topic.partitions) for topic in request.topics) > DECISION_OFFSETS_MAX


def split(request: OffsetCommitRequest) -> Iterator[OffsetCommitRequest]:
    """Split a request into requests with at most :data:`DECISION_OFFSETS_MAX` offsets each."""
    if not is_large(request):
        yield request
        return
    for topic in request.topics:
        for first in range(0, len(topic.partitions), DECISION_OFFSETS_MAX):
            partitions = topic.partitions[first : first + DECISION_OFFSETS_MAX]
            part = CommitTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            yield OffsetCommitRequest(
                group_id=request.group_id,
                generation_id_or_member_epoch=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                retention_time_ms=request.retention_time_ms,
                topics=[part],
            )


def split_leave(request: LeaveGroupRequest) -> Iterator[LeaveGroupRequest]:
    """Split a request into requests with at most :data:`DECISION_MEMBERS_MAX` members each."""
    if len(request.members) <= DECISION_MEMBERS_MAX:
        yield request
        return
    for first in range(0, len(request.members), DECISION_MEMBERS_MAX):
        members = request.members[first : first + DECISION_MEMBERS_MAX]
        yield LeaveGroupRequest(group_id=request.group_id, members=members)


def commit(
    shard: GroupShard, request: OffsetCommitRequest, moment: Moment, ticket: int
) -> Decision:
    """Decide on an OffsetCommit whose topics have both name and id."""
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    check_commit(shard, builder, request)
    builder.answer(ticket, _add_commits(builder, request))
    return builder.build()


def check_commit(shard: GroupShard, builder: DecisionBuilder, request: OffsetCommitRequest) -> None:
    """Reject a commit by a client that is not a member of the current generation.

    If the group has no members, any client may commit without a generation.
    """
    if not shard.has_groups:
        shard.schedule_expiry(builder)
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    group = shard.groups.get(request.group_id)
    _check_has_offsets(shard, request.group_id)
    if (assigned := shard.committing_group(request.group_id)) is not None:
        assigned.check_commit(request)
        return
    if group is None:
        if generation >= 0:
            raise GroupIdNotFound
        return
    if generation < 0 and group.state is ClassicGroupState.EMPTY:
        return
    if generation < 0 and not member_id and request.group_instance_id is None:
        raise UnknownMemberId
    member = group.check_member(member_id, request.group_instance_id)
    if generation != group.generation:
        raise IllegalGeneration
    if group.state is ClassicGroupState.COMPLETING:
        raise RebalanceInProgress
    builder.restart_session(group, member)


def commit_in_transaction(
    shard: GroupShard,
    request: OffsetCommitRequest,
    producer: TransactionalProducer,
    moment: Moment,
    ticket: int,
) -> Decision:
    """Decide on a TxnOffsetCommit, whose offsets are pending until the transaction ends."""
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    _check_commit_in_transaction(shard, builder, request)
    builder.answer(ticket, _add_commits(builder, request))
    return builder.build()._replace(producer=producer)


def _check_commit_in_transaction(
    shard: GroupShard, builder: DecisionBuilder, request: OffsetCommitRequest
) -> None:
    """Reject a commit whose consumer is not a member of the current generation (KIP-447).

    A producer that names no member is fenced only by its transactional id. A commit during a
    rebalance is accepted; no commit restarts the member's session.
    """
    if not shard.has_groups:
        shard.schedule_expiry(builder)
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    has_member = generation >= 0 or bool(member_id) or request.group_instance_id is not None
    group = shard.groups.get(request.group_id)
    _check_has_offsets(shard, request.group_id)
    if (assigned := shard.committing_group(request.group_id)) is not None:
        if not has_member:
            return
        try:
            assigned.check_commit(request)
        except StaleMemberEpoch as error:
            raise IllegalGeneration from error
        return
    if group is None:
        if generation >= 0:
            raise IllegalGeneration
        return
    if not has_member or (generation < 0 and group.state is ClassicGroupState.EMPTY):
        return
    group.check_member(member_id, request.group_instance_id)
    if generation != group.generation:
        raise IllegalGeneration


def _check_has_offsets(shard: GroupShard, group_id: str) -> None:
    """Reject a commit to a share group, which does not have committed offsets."""
    if shard.share_group(group_id) is not None:
        raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")


def _add_commits(builder: DecisionBuilder, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Add the records of a commit to the decision; return the response."""
    builder.draft = draft = Draft(builder.moment.wall_ms, GroupChange(request.group_id))
    limit = builder.settings.offset_metadata_max_bytes
    return OffsetCommitResponse(
        topics=[
            CommitTopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=add_requested(draft, request, topic, topic.partitions, limit),
            )
            for topic in request.topics
        ]
    )


@attrs.define(eq=False, repr=False)
class OffsetsRead:
    """A snapshot of a group's committed offsets, from which a response is built in slices."""

    committed: list[tuple[str, Sequence[tuple[int, Packed | None]]]]
    """By topic: partitions with their offsets, None for a partition without a committed offset."""
    unstable: frozenset[tuple[str, int]]
    topic_ids: Mapping[str, bytes] | None
    is_of_all: bool
    topics: list[FetchedTopic] = attrs.field(factory=list)
    """The response's topics, filled by :meth:`answer`."""

    def answer(self) -> Iterator[None]:
        """Fill :attr:`topics`; yield every :data:`YIELD_OFFSETS` offsets."""
        for topic, offsets in self.committed:
            partitions: list[FetchedPartition] = []
            for number, (partition, packed) in enumerate(offsets):
                if number % YIELD_OFFSETS == 0:
                    yield
                committed = None if packed is None else Committed.unpack(packed)
                if committed is not None and is_of_deleted_topic(self.topic_ids, topic, committed):
                    if self.is_of_all:
                        continue
                    committed = None
                partitions.append(self._answer_partition(topic, partition, committed))
            if partitions or not self.is_of_all:
                self.topics.append(FetchedTopic(name=topic, partitions=partitions))

    def _answer_partition(
        self, topic: str, partition: int, committed: Committed | None
    ) -> FetchedPartition:
        if (topic, partition) in self.unstable:
            return no_offset(partition, UnstableOffsetCommit.code)
        if committed is None:
            return no_offset(partition)
        return FetchedPartition(
            partition_index=partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )


def read_offsets(
    shard: GroupShard,
    group_id: str,
    topics: Sequence[tuple[str, Iterable[int]]] | None,
    *,
    require_stable: bool,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> OffsetsRead:
    """Take a snapshot of the committed offsets of these partitions; ``topics`` None means all.

    A member of a consumer group or streams group must give its current epoch.
    """
    if (assigned := shard.committing_group(group_id)) is not None:
        assigned.check_fetch(member_id, member_epoch)
    stored = shard.offsets.of(group_id)
    committed: list[tuple[str, Sequence[tuple[int, Packed | None]]]]
    if topics is None:
        committed = [(topic, list(stored[topic].items())) for topic in stored]
    else:
        committed = []
        for topic, partitions in topics:
            of_topic = stored.get(topic, {})
            committed.append((topic, [(number, of_topic.get(number)) for number in partitions]))
    unstable: frozenset[tuple[str, int]] = frozenset()
    unstable_partitions = shard.offsets.unstable_partitions(group_id) if require_stable else ()
    if unstable_partitions:
        unstable = frozenset(
            (topic, number)
            for topic, offsets in committed
            for number, _ in offsets
            if (topic, number) in unstable_partitions
        )
    return OffsetsRead(
        committed=committed,
        unstable=unstable,
        topic_ids=shard.topic_ids(),
        is_of_all=topics is None,
    )


def no_offset(partition: int, error_code: int = 0) -> FetchedPartition:
    """Return the answer for a partition without a committed offset, or with an error."""
    return FetchedPartition(
        partition_index=partition,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=error_code,
    )


def delete_offsets(
    shard: GroupShard, request: OffsetDeleteRequest, moment: Moment, ticket: int
) -> Decision:
    """Decide on an OffsetDelete; topics that the group still reads keep their offsets."""
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    read_topics = topics_in_use(shard, request)

    def answer(topic: str, partition: int) -> DeletedTopic.OffsetDeleteResponsePartition:
        key = (request.group_id, topic, partition)
        if topic in read_topics:
            return DeletedTopic.OffsetDeleteResponsePartition(
                partition_index=partition, error_code=GroupSubscribedToTopic.code
            )
        if shard.offsets.get(*key) or shard.offsets.is_unstable(*key):
            builder.records.append(offset_tombstone(*key))
        return DeletedTopic.OffsetDeleteResponsePartition(partition_index=partition)

    topics = [
        DeletedTopic(
            name=topic.name,
            partitions=[answer(topic.name, p.partition_index) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    builder.answer(ticket, OffsetDeleteResponse(topics=topics))
    return builder.build()


def topics_in_use(shard: GroupShard, request: OffsetDeleteRequest) -> frozenset[str]:
    """Return the topics of an OffsetDelete that the group still reads.

    Raises GroupIdNotFound, or NonEmptyGroup if a classic group's members are not consumers, so that
    its subscriptions are unknown.
    """
    subscriber = shard.committing_group(request.group_id)
    if subscriber is not None:
        return frozenset(t.name for t in request.topics if subscriber.is_subscribed_to(t.name))
    group = _existing(shard, request.group_id)
    if group.state is not ClassicGroupState.EMPTY and group.protocol_type != CONSUMER:
        raise NonEmptyGroup
    names = frozenset(topic.name for topic in request.topics)
    subscribed = subscribed_topics(group)
    if subscribed is not None:
        return names & subscribed
    return names if group.protocol_type == CONSUMER else frozenset()


# Whole groups


Listing = tuple[str, str, str, str]
"""The id, protocol type, state and kind of a group."""


def list_groups(shard: GroupShard, states: Iterable[str], kinds: Iterable[str]) -> "list[AnyGroup]":
    """Return the groups in any of these states and of any of these kinds; empty means all."""
    state_filter = {state.lower() for state in states}
    kind_filter = {kind.lower() for kind in kinds}
    groups: list[AnyGroup] = []
    if not kind_filter or "classic" in kind_filter:
        groups += shard.groups.values()
    if not kind_filter or CONSUMER in kind_filter:
        groups += shard.consumer_groups
    if not kind_filter or SHARE in kind_filter:
        groups += shard.share_groups
    if not kind_filter or STREAMS in kind_filter:
        groups += shard.streams_groups
    if not state_filter:
        return groups
    return [group for group in groups if group.state.value.lower() in state_filter]


def listing_of(group: "AnyGroup") -> Listing:
    """Return a group's entry in a list of groups."""
    if isinstance(group, ClassicGroup):
        return group.group_id, group.protocol_type or "", group.state.value, "classic"
    return group.group_id, group.kind, group.state.value, group.kind


def _existing(shard: GroupShard, group_id: str) -> ClassicGroup:
    group = shard.groups.get(group_id)
    if group is None:
        raise shard.no_group(group_id, "classic")
    return group


def delete_records(shard: GroupShard, group_id: str, builder: DecisionBuilder) -> list[Record]:
    """Return the tombstones of a group without members, and cancel its deadlines.

    Raises GroupIdNotFound or NonEmptyGroup.
    """
    assigned = shard.assigned_group(group_id)
    if assigned is not None:
        if assigned.members:
            raise NonEmptyGroup
        if assigned.kind == STREAMS:
            builder.timers.append((("streams-delay", group_id), None))
        return shard.of_kind(assigned.kind).tombstones(group_id)
    group = _existing(shard, group_id)
    if group.state is not ClassicGroupState.EMPTY:
        raise NonEmptyGroup
    end_pending(builder, group)
    return [group_tombstone(group_id)]


def delete_group(shard: GroupShard, group_id: str, moment: Moment, ticket: int) -> Decision:
    """Decide to delete a group without members, and its offsets.

    The answer is True, or False if there are too many tombstones for one decision; then nothing
    changes.
    """
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    tombstones = delete_records(shard, group_id, builder)
    committed = (
        (topic, partition)
        for topic, partitions in shard.offsets.of(group_id).items()
        for partition in partitions
    )
    offsets = chain(committed, shard.offsets.unstable_partitions(group_id))
    removals = list(islice(offsets, DECISION_OFFSETS_MAX + 1))
    if len(removals) > DECISION_OFFSETS_MAX:
        builder.timers.clear()
        builder.answer(ticket, False)
        return builder.build()
    builder.records.extend(offset_tombstone(group_id, *removal) for removal in removals)
    builder.records.extend(tombstones)
    builder.answer(ticket, True)
    return builder.build()


def end_pending(builder: DecisionBuilder, group: ClassicGroup) -> None:
    """End the sessions of member ids that were handed out but have not joined."""
    for member_id in group.pending_join:
        builder.end_session(group, member_id)


def describe(shard: GroupShard, group_id: str) -> DescribedGroup:
    """Describe a group for DescribeGroups; include members' metadata only if it is stable."""
    group = _existing(shard, group_id)
    stable = group.state is ClassicGroupState.STABLE
    members = [
        DescribedGroup.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members_by_arrival()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=members,
    )
