"""Requests to streams groups, as decisions on a :class:`~kwire.group.shard.GroupShard`."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kwire.codec.messages.streams_group_describe import (
    Assignment,
    KeyValue,
    StreamsGroupDescribeResponse,
    TaskIds,
)
from kwire.codec.messages.streams_group_describe import Endpoint as DescribedEndpoint
from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest as Request
from kwire.coordinator.decision import Decision, Moment
from kwire.errors import GroupIdNotFound
from kwire.group.decision_builder import Client, DecisionBuilder
from kwire.group.model import ClassicGroupState
from kwire.group.records import group_tombstone
from kwire.group.requests import end_pending
from kwire.group.shard import GroupShard
from kwire.group.streams.heartbeat import JOIN_EPOCH, Matched
from kwire.group.streams.model import StreamsGroup, StreamsMember
from kwire.group.streams.tasks import TaskSet
from kwire.group.streams.topology import NO_COUNTS, describe_topology

DescribedGroup = StreamsGroupDescribeResponse.DescribedGroup


class MemberAndTarget(NamedTuple):
    """A member, and the tasks that it should get."""

    member: StreamsMember
    target: TaskSet


# Members


def heartbeat(
    shard: GroupShard,
    request: Request,
    client: Client,
    moment: Moment,
    ticket: int,
    *,
    matched: Matched | None = None,
    may_wait: bool = False,
) -> Decision:
    """Decide on a heartbeat; the first one creates the group.

    With ``may_wait``, raise :class:`~kwire.group.streams.heartbeat.Unmatched` if a large topology
    has to be matched with its topics before.
    """
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    if not shard.has_groups:
        shard.schedule_expiry(builder)
    group = _group_of(shard, builder, request)
    if request.member_epoch < JOIN_EPOCH:
        return shard.streams.leave(group, request, builder)
    return shard.streams.heartbeat(group, request, client, builder, matched, may_wait=may_wait)


def _group_of(shard: GroupShard, builder: DecisionBuilder, request: Request) -> StreamsGroup:
    """Return the group of a heartbeat; a join may create it, or replace an empty classic group."""
    group_id = request.group_id
    group = shard.streams_group(group_id)
    if group is not None:
        return group
    classic, joins = shard.groups.get(group_id), request.member_epoch == JOIN_EPOCH
    if not shard.has_group(group_id):
        if joins:
            return StreamsGroup(group_id)
        kind = "Group" if request.member_epoch < JOIN_EPOCH else "Streams group"
        raise GroupIdNotFound(f"{kind} {group_id} not found.")
    if joins and classic is not None and classic.state is ClassicGroupState.EMPTY:
        builder.records.append(group_tombstone(group_id))
        end_pending(builder, classic)
        return StreamsGroup(group_id)
    raise GroupIdNotFound(f"Group {group_id} is not a streams group.")


# Descriptions


def describe(shard: GroupShard, group_id: str) -> tuple[DescribedGroup, list[MemberAndTarget]]:
    """Describe a group; its members are returned separately, with their targets."""
    group = shard.streams_group(group_id)
    if group is None:
        raise shard.no_group(group_id, "streams")
    configuration, topology = group.configuration, group.topology
    counts = NO_COUNTS
    if configuration is not None and configuration.is_ready:
        counts = configuration.partition_counts
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=None if topology is None else describe_topology(topology, counts),
        members=[],
    )
    nothing, target = TaskSet(), group.target
    return described, [
        MemberAndTarget(member, target.get(member_id, nothing))
        for member_id, member in group.members.items()
    ]


def describe_member(each: MemberAndTarget) -> DescribedGroup.Member:
    """Describe a member with its tasks."""
    member, endpoint = each.member, each.member.endpoint
    return DescribedGroup.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else DescribedEndpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[KeyValue(key=name, value=text) for name, text in member.tags],
        assignment=_assignment(*member.assigned),
        target_assignment=_assignment(*each.target),
        is_classic=False,
    )


def _assignment(
    active: Mapping[str, Iterable[int]],
    standby: Mapping[str, Iterable[int]],
    warmup: Mapping[str, Iterable[int]],
) -> Assignment:
    return Assignment(
        active_tasks=_task_ids(active),
        standby_tasks=_task_ids(standby),
        warmup_tasks=_task_ids(warmup),
    )


def _task_ids(tasks: Mapping[str, Iterable[int]]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(numbers))
        for subtopology_id, numbers in sorted(tasks.items())
    ]
