"""The group coordinator for the handlers: it finds a group's partition and calls its shard.

Checks that need no state come first, as in Kafka, so that a bad request gets the same answer
from every node.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs

from kwire.clock import Clock
from kwire.codec.messages.delete_groups import DeleteGroupsResponse
from kwire.codec.messages.describe_groups import DescribeGroupsResponse
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.codec.messages.list_groups import ListGroupsResponse
from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.offset_fetch import OffsetFetchResponse
from kwire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kwire.coordinator.decision import Decision, Moment, Opaque, TransactionalProducer
from kwire.coordinator.listing import read_each
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices, give_way, run_in_slices
from kwire.errors import (
    CoordinatorLoadInProgress,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
)
from kwire.group import requests
from kwire.group.decision_builder import Client
from kwire.group.kind_settings import KindSettings
from kwire.group.kinds import GroupKinds
from kwire.group.offsets import GroupChange
from kwire.group.settings import GroupSettings, follow_config
from kwire.group.shard import GroupShard
from kwire.types import CONSUMER_OFFSETS
from kwire.waits import Slow

if TYPE_CHECKING:
    from kwire.codec.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    )
    from kwire.configs.broker import BrokerConfig
    from kwire.coordinator.draft import Draft
    from kwire.coordinator.ports import LedPartition, ShardLog
    from kwire.group.consumer.requests import DescribedGroup as DescribedConsumerGroup
    from kwire.group.consumer.topics import Topics
    from kwire.group.share.coordinator import SharePorts


ListedGroup = ListGroupsResponse.ListedGroup
DescribedGroup = DescribeGroupsResponse.DescribedGroup
Deletion = DeleteGroupsResponse.DeletableGroupResult
FetchedTopic = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics


@attrs.define(kw_only=True, eq=False, repr=False)
class GroupCoordinator(GroupKinds):
    """The groups that this node coordinates."""

    settings: Callable[[], GroupSettings]

    @classmethod
    def build(
        cls,
        to: "ShardLog",
        clock: Clock,
        *,
        config: "Callable[[], BrokerConfig]",
        partitions: Callable[[], int],
        new_id: Callable[[], str],
        topic_ids: Callable[[], Mapping[str, bytes] | None],
        topics: "Callable[[], Topics]",
        share_ports: "Callable[[], SharePorts]",
        spawn: Callable[[Callable[[], Awaitable[None]]], object],
        overrides: Callable[[str], Mapping[str, str]] = lambda _: {},
        on_rebalance: Callable[[str], None] = lambda _: None,
    ) -> "GroupCoordinator":
        """Return the coordinator with its service; the caller runs ``service.run``.

        ``overrides`` returns the settings of a group that differ from the broker's;
        ``on_rebalance`` is called with the protocol of a group that was rebalanced.
        """
        settings, of_kinds = follow_config(config), KindSettings(config, overrides)

        def make_shard(_: int) -> GroupShard:
            return GroupShard(
                new_id=new_id,
                settings=settings,
                topic_ids=topic_ids,
                topics=topics,
                consumer_settings=of_kinds.consumer,
                share_settings=of_kinds.share,
                streams_settings=of_kinds.streams,
                on_rebalance=on_rebalance,
            )

        service = CoordinatorRuntime(
            topic=CONSUMER_OFFSETS,
            log=to,
            clock=clock,
            make=make_shard,
            commit_timeout_ms=lambda: config().offsets_commit_timeout_ms,
        )
        return cls(
            service=service,
            settings=settings,
            partitions=partitions,
            topics=topics,
            share_ports=share_ports,
            spawn=spawn,
            clock=clock,
        )

    def on_role_changed(self, partition: "LedPartition") -> None:
        """Load a partition that this broker now leads, or drop it; called by the replica layer."""
        if partition.topic != CONSUMER_OFFSETS:
            return
        if partition.leader is not None:
            self.service.on_elected(partition.partition, partition.leader_epoch)
        else:
            self.service.on_resigned(partition.partition)

    async def join(self, request: JoinGroupRequest, client: Client) -> JoinGroupResponse:
        check_id(request.group_id)
        settings = self.settings()
        timeout_ms = request.session_timeout_ms
        shortest = settings.group_min_session_timeout_ms
        if not shortest <= timeout_ms <= settings.group_max_session_timeout_ms:
            raise InvalidSessionTimeout
        reply: JoinGroupResponse = await self._call(
            request.group_id, lambda shard, *when: shard.join(request, client, *when)
        )
        return reply

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        if request.must_name_protocol and None in (request.protocol_type, request.protocol_name):
            raise InconsistentGroupProtocol
        group_id = request.group_id
        check_id(group_id)
        if len(request.assignments) <= requests.DECISION_MEMBERS_MAX:
            reply: SyncGroupResponse = await self._call(
                group_id, lambda shard, *when: shard.sync(request, *when)
            )
            return reply
        from kwire.group.large_requests import LargeSync

        sync = LargeSync(request, self._draft(group_id))
        await self._call(group_id, sync.check)
        await run_in_slices(sync.encode())
        await give_way()  # The last step has encoded the whole record.
        return cast(SyncGroupResponse, await self._call(group_id, sync.decide))

    def heartbeat(self, request: HeartbeatRequest) -> Slow[HeartbeatResponse] | HeartbeatResponse:
        """Restart a member's session and return whether a rebalance has begun."""
        check_id(request.group_id)
        index = self.partition_of(request.group_id)
        try:
            return cast(
                HeartbeatResponse,
                self.service.begin(index, lambda shard, *when: shard.heartbeat(request, *when)),
            )
        except CoordinatorLoadInProgress:
            return HeartbeatResponse()

    def consumer_heartbeat(
        self, request: "ConsumerGroupHeartbeatRequest", client: Client
    ) -> "Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse":
        """Have a member of a consumer group join, stay, change or leave (KIP-848)."""
        from kwire.group.consumer.requests import heartbeat

        reply = self.service.begin(
            self.partition_of(request.group_id),
            lambda shard, *when: heartbeat(shard, request, client, *when),
        )
        return cast("Slow[ConsumerGroupHeartbeatResponse] | ConsumerGroupHeartbeatResponse", reply)

    async def describe_consumer_group(self, group_id: str) -> "DescribedConsumerGroup":
        """Describe a consumer group; many members are described in slices."""
        from kwire.group.consumer import requests as consumer_requests

        described, members = await self.service.read(
            self.partition_of(group_id), lambda shard: consumer_requests.describe(shard, group_id)
        )
        topics, slices = self.topics(), Slices()
        for member, target in members:
            described.members.append(consumer_requests.describe_member(member, target, topics))
            await slices.pause()
        return described

    async def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members, in several decisions if there are many."""
        check_id(request.group_id)
        response = LeaveGroupResponse()
        slices = Slices()
        for part in requests.split_leave(request):
            await slices.pause()
            reply: LeaveGroupResponse = await self._call(request.group_id, partial(_leave, part))
            response.members += reply.members
        return response

    def commit(
        self, request: OffsetCommitRequest
    ) -> Slow[OffsetCommitResponse] | OffsetCommitResponse:
        """Commit offsets; each topic has its name and, if known, its id.

        A large commit is encoded before the decision, in slices between which other tasks run. It
        succeeds or fails as a whole; it fails with UNKNOWN_SERVER_ERROR if it does not fit in one
        batch.
        """
        if requests.is_large(request):
            return Slow(partial(self._commit_large, request))
        reply = self.service.begin(
            self.partition_of(request.group_id),
            lambda shard, *when: requests.commit(shard, request, *when),
        )
        return cast(OffsetCommitResponse, reply)

    async def _commit_large(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        from kwire.group.large_requests import LargeCommit

        group_id = request.group_id
        commit = LargeCommit(request, self._draft(group_id))
        await self._call(group_id, commit.check)
        slices = Slices()
        for _ in commit.encode(self.settings()):
            await slices.pause()
        return cast(OffsetCommitResponse, await self._call(group_id, commit.decide))

    async def commit_in_transaction(
        self, request: OffsetCommitRequest, producer: TransactionalProducer
    ) -> OffsetCommitResponse:
        """Write offsets that take effect when the producer's transaction commits.

        Each topic has its name and its id. Many offsets are written in several decisions; they
        still take effect together, when the transaction commits.
        """
        check_id(request.group_id)
        response = OffsetCommitResponse()
        slices = Slices()
        for part in requests.split(request):
            await slices.pause()
            reply: OffsetCommitResponse = await self._call(
                request.group_id, partial(_commit_in_transaction, part, producer)
            )
            response.topics += reply.topics
        return response

    def _draft(self, group_id: str) -> "Draft[GroupChange]":
        return self.service.draft(GroupChange(group_id))

    async def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Iterable[int]]] | None,
        *,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[FetchedTopic]:
        """Return a consistent snapshot of committed offsets by topic; ``topics`` None means all.

        A long response is built in slices between which other tasks run.
        """
        read = await self.service.read(
            self.partition_of(group_id),
            lambda shard: requests.read_offsets(
                shard,
                group_id,
                topics,
                require_stable=require_stable,
                member_id=member_id,
                member_epoch=member_epoch,
            ),
        )
        slices = Slices()
        for _ in read.answer():
            await slices.pause()
        return read.topics

    async def list_groups(self, states: Sequence[str], kinds: Sequence[str]) -> list[ListedGroup]:
        """Return the groups of the partitions that this node leads."""
        listing: list[ListedGroup] = []
        slices = Slices()
        for groups in await read_each(
            self.service, lambda shard: requests.list_groups(shard, states, kinds)
        ):
            for group_id, protocol_type, state, kind in map(requests.listing_of, groups):
                listing.append(
                    ListedGroup(
                        group_id=group_id,
                        protocol_type=protocol_type,
                        group_state=state,
                        group_type=kind,
                    )
                )
                await slices.pause()
        return listing

    async def describe(self, group_id: str) -> DescribedGroup:
        return await self.service.read(
            self.partition_of(group_id), lambda shard: requests.describe(shard, group_id)
        )

    def on_topics_deleted(self, names: Mapping[bytes, str]) -> None:
        """Remove the offsets of deleted topics; ``names`` maps the topics' ids to their names."""
        self.service.schedule_for_all(lambda shard: shard.remove_deleted_topics(names))

    def on_metadata_caught_up(self) -> None:
        """Remove the offsets of topics that no longer exist; the metadata must be current."""
        self.service.schedule_for_all(lambda shard: shard.remove_missing_topics())

    async def _call(
        self, group_id: str, decide: Callable[[GroupShard, Moment, int], Decision]
    ) -> Opaque:
        return await self.service.call(self.partition_of(group_id), decide)


def check_id(group_id: str) -> None:
    """Reject a request that names no group."""
    if not group_id:
        raise InvalidGroupId


def _leave(request: LeaveGroupRequest, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
    return shard.leave(request, moment, ticket)


def _commit_in_transaction(
    request: OffsetCommitRequest,
    producer: TransactionalProducer,
    shard: GroupShard,
    moment: Moment,
    ticket: int,
) -> Decision:
    return requests.commit_in_transaction(shard, request, producer, moment, ticket)
