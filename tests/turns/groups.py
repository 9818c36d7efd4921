"""Requests to a node with 10,000 groups, and about a group with 10,000 offsets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeRequest
from kwire.group.commit_records import offset_record
from kwire.group.counts import GroupCounts
from kwire.group.records import store
from kwire.metrics import GROUP_OFFSET, Metrics
from kwire.net.http_pages import join_lines
from kwire.node.gauges import add_group_gauges
from kwire.records.build import New, batch
from kwire.types import CONSUMER_OFFSETS
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

GROUPS: Final = 10_000
NAMES: Final = [f"group-{number}" for number in range(GROUPS)]
OFFSETS: Final = 10_000
TOPIC_OFFSETS: Final = 1_000
BATCH_RECORDS: Final = 1_000
CHECK_INTERVAL_S: Final = 600
TOPICS: Final = [f"topic-{number}" for number in range(OFFSETS // TOPIC_OFFSETS)]


@asynccontextmanager
async def node_with_groups(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.create_all(TOPICS, TOPIC_OFFSETS)
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await trio.sleep(10)
        await append_commits(node)
        yield node


async def append_commits(node: MeteredNode) -> None:
    """Append one committed offset of each group, and have the coordinator load them."""
    services = node.server.services
    log = node.parts.replicas.partitions.get(CONSUMER_OFFSETS, 0).log
    now_ms = services.clock.now_ms()
    topic = TOPICS[0], services.current.image.topic_ids[TOPICS[0]]
    for start in range(0, GROUPS, BATCH_RECORDS):
        records = []
        for name in NAMES[start : start + BATCH_RECORDS]:
            record = offset_record(name, topic, (0, 1, -1, ""), now_ms)
            records.append(New(*store(record)))
        log.append_follower(batch(records, base_offset=log.end_offset, timestamp_ms=now_ms), now_ms)
    log.high_watermark = log.end_offset
    node.parts.groups().service.on_resigned(0)
    node.parts.groups().service.on_elected(0, 1)
    await trio.sleep(10)


GROUPED: Final = Scene("requests about groups", node_with_groups)
row = GROUPED.operation


def commit(group: str, topics: list[str], partitions: int) -> OffsetCommitRequest:
    """Return a commit without a member, of the first partitions of some topics."""
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[
            shape(
                name=name,
                partitions=[
                    shape.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=1, committed_metadata=""
                    )
                    for index in range(partitions)
                ],
            )
            for name in topics
        ],
    )


@row("ListGroups", "groups", GROUPS, "ListGroups")
async def list_groups(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(ListGroupsRequest())
    assert len(answer.groups) == size


@row("DescribeGroups", "groups", GROUPS, "DescribeGroups")
async def describe_groups(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(DescribeGroupsRequest(groups=NAMES))
    assert len(answer.groups) == size


@row("descriptions of groups as groups of another kind", "groups", GROUPS)
async def describe_as_others(node: MeteredNode, size: int) -> None:
    for describe in (
        ConsumerGroupDescribeRequest,
        ShareGroupDescribeRequest,
        StreamsGroupDescribeRequest,
    ):
        first, all_groups = (
            describe(group_ids=names, include_authorized_operations=False)
            for names in (NAMES[:1], NAMES)
        )
        await node.call(first)  # The modules of a kind are loaded on first use.
        (answer,) = await node.measure(all_groups)
        assert len(answer.groups) == size


@row("FindCoordinator", "groups", GROUPS, "FindCoordinator")
async def find_coordinator(node: MeteredNode, size: int) -> None:
    await node.measure(FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES))


@row("OffsetFetch of many groups", "groups", GROUPS, "OffsetFetch")
async def offset_fetch_of_groups(node: MeteredNode, size: int) -> None:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    groups = [shape(group_id=name, topics=None) for name in NAMES]
    await node.measure(OffsetFetchRequest(groups=groups), version=9)


@row("OffsetCommit", "offsets", OFFSETS, "OffsetCommit")
async def offset_commit(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(commit("large", TOPICS, TOPIC_OFFSETS), version=9)
    assert not any(p.error_code for topic in answer.topics for p in topic.partitions)


@row(
    "OffsetFetch of all offsets of a group", "offsets", OFFSETS, "OffsetFetch", after="OffsetCommit"
)
async def offset_fetch(node: MeteredNode, size: int) -> None:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(groups=[shape(group_id="large", topics=None)])
    (answer,) = await node.measure(request, version=9)
    assert sum(len(topic.partitions) for topic in answer.groups[0].topics) == size


@row("OffsetFetch of named partitions", "offsets", OFFSETS, "OffsetFetch", after="OffsetCommit")
async def offset_fetch_by_name(node: MeteredNode, size: int) -> None:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [
        shape.OffsetFetchRequestTopics(name=name, partition_indexes=list(range(TOPIC_OFFSETS)))
        for name in TOPICS
    ]
    request = OffsetFetchRequest(groups=[shape(group_id="large", topics=topics)])
    await node.measure(request, version=9)


@row("counts of groups for the metrics", "groups", GROUPS)
async def count_groups(node: MeteredNode, size: int) -> None:
    counts = GroupCounts(node.parts.groups().service.machines)
    with node.meter.measuring():
        await counts.update()
    assert dict(counts.by_kind())["classic",] >= size


@row("metrics of offsets in partitions that other nodes lead", "offsets", OFFSETS)
async def show_lags(node: MeteredNode, size: int) -> None:
    metrics, led = Metrics(), node.parts.replicas.partitions
    leaders = {partition: partition.leader for partition in led}
    add_group_gauges(metrics, node.parts.replicas, node.parts.groups().service.machines)
    for partition in led:
        partition.leader = None
    with node.meter.measuring():
        body = await join_lines(metrics.lines_and_gaps())
    for partition, leader in leaders.items():
        partition.leader = leader
    assert body.count(b"\n" + GROUP_OFFSET.name.encode()) >= size


@row(
    "loading of a partition",
    "groups",
    GROUPS,
    "coordinator.loading._load_queued",
    after="OffsetCommit",
)
async def load(node: MeteredNode, size: int) -> None:
    """Their offsets are as many, beside those of the group with many offsets."""
    service = node.parts.groups().service
    with node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 2)
        await trio.sleep(10)
    answer = await node.call(ListGroupsRequest())
    assert len(answer.groups) >= size


@row("OffsetDelete", "offsets", OFFSETS, "OffsetDelete")
async def offset_delete(node: MeteredNode, size: int) -> None:
    await node.call(commit("large", TOPICS, TOPIC_OFFSETS), 9)
    shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [
        shape(
            name=name,
            partitions=[
                shape.OffsetDeleteRequestPartition(partition_index=index)
                for index in range(TOPIC_OFFSETS)
            ],
        )
        for name in TOPICS
    ]
    request = OffsetDeleteRequest(group_id="large", topics=topics)
    (answer,) = await node.measure(request)
    assert not answer.error_code


@row("DeleteGroups of a group with many offsets", "offsets", OFFSETS, "DeleteGroups")
async def delete_large_group(node: MeteredNode, size: int) -> None:
    await node.call(commit("large", TOPICS, TOPIC_OFFSETS), 9)
    await node.measure(DeleteGroupsRequest(groups_names=["large"]))


@row("expiry of offsets", "groups", GROUPS, "coordinator.steps.run")
async def expire(node: MeteredNode, size: int) -> None:
    """The interval's check finds nothing that has expired."""
    with node.meter.measuring():
        await trio.sleep(CHECK_INTERVAL_S + 1)


@row("DeleteGroups", "groups", GROUPS, "DeleteGroups")
async def delete_groups(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(DeleteGroupsRequest(groups_names=NAMES))
    assert not any(result.error_code for result in answer.results)
