"""A share group (KIP-932) of 1,000 members that read 5,000 partitions."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

MEMBERS: Final = 1_000
PARTITIONS: Final = 5_000
GROUP: Final = "g"
TOPIC: Final = "topic"
SESSION_S: Final = 45


@attrs.define
class Sharers:
    """A node, and the members of its group as their clients know them."""

    node: MeteredNode
    epochs: dict[str, int] = attrs.field(factory=dict)

    async def join(self, ids: Sequence[str]) -> None:
        """Measure the joins of members."""
        (answers,) = await self.node.measure_together([heartbeat(each) for each in ids])
        self.follow(answers)

    async def beat(self) -> None:
        """Measure a heartbeat of each member."""
        requests = [heartbeat(each, epoch) for each, epoch in self.epochs.items()]
        (answers,) = await self.node.measure_together(requests)
        self.follow(answers)

    def follow(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            assert answer.error_code == 0, answer.error_message
            self.epochs[answer.member_id] = answer.member_epoch

    async def settle(self) -> None:
        """Measure heartbeats until all members share all partitions."""
        while len(await self.assignment()) < PARTITIONS:
            await trio.sleep(2)
            await self.beat()

    async def assignment(self) -> set[int]:
        answer = await self.node.call(describe_request())
        return {
            number
            for member in answer.groups[0].members
            for topic in member.assignment.topic_partitions
            for number in topic.partitions
        }


def heartbeat(member_id: str, epoch: int = 0) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        subscribed_topic_names=None if epoch else [TOPIC],
    )


def describe_request() -> ShareGroupDescribeRequest:
    return ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False)


def offsets_request() -> DescribeShareGroupOffsetsRequest:
    shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    return DescribeShareGroupOffsetsRequest(groups=[shape(group_id=GROUP, topics=None)])


@asynccontextmanager
async def group_of_sharers(meter: TurnMeter) -> AsyncIterator[Sharers]:
    state = "share_coordinator_state_topic_"
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
        "group_share_max_size": str(MEMBERS),
        f"{state}num_partitions": "1",
        f"{state}replication_factor": "1",
        f"{state}min_isr": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.create(TOPIC, PARTITIONS)
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        await trio.sleep(10)
        await node.call(describe_request())  # The modules of share groups are loaded on first use.
        yield Sharers(node)


SHARING: Final = Scene("a share group of many members", group_of_sharers)
row = SHARING.operation

JOINS: Final = "ShareGroupHeartbeat of new members"


@row(JOINS, "members", MEMBERS, "ShareGroupHeartbeat")
async def begin(sharers: Sharers, size: int) -> None:
    await sharers.join([f"m{number}" for number in range(size)])
    await sharers.settle()


@row("ShareGroupHeartbeat", "members", MEMBERS, "ShareGroupHeartbeat", after=JOINS)
async def beat(sharers: Sharers, size: int) -> None:
    await sharers.beat()


@row("ShareGroupDescribe", "members", MEMBERS, "ShareGroupDescribe", after=JOINS)
async def describe(sharers: Sharers, size: int) -> None:
    (answer,) = await sharers.node.measure(describe_request())
    assert len(answer.groups[0].members) == size


@row(
    "DescribeShareGroupOffsets", "partitions", PARTITIONS, "DescribeShareGroupOffsets", after=JOINS
)
async def describe_offsets(sharers: Sharers, size: int) -> None:
    (answer,) = await sharers.node.measure(offsets_request())
    assert len(answer.groups[0].topics[0].partitions) == size


@row(
    "loading of a share group", "members", MEMBERS, "coordinator.loading._load_queued", after=JOINS
)
async def load(sharers: Sharers, size: int) -> None:
    service = sharers.node.parts.groups().service
    with sharers.node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 1)
        await trio.sleep(5)
    await sharers.beat()


@row(
    "sessions of a share group that expire",
    "members",
    MEMBERS,
    "coordinator.runtime._keep_deadlines",
    after=JOINS,
)
async def expire(sharers: Sharers, size: int) -> None:
    with sharers.node.meter.measuring():
        await trio.sleep(SESSION_S + 1)
    answer = await sharers.node.call(describe_request())
    assert not answer.groups[0].members


@row("AlterShareGroupOffsets", "partitions", PARTITIONS, "AlterShareGroupOffsets")
async def alter(sharers: Sharers, size: int) -> None:
    shape = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = shape.AlterShareGroupOffsetsRequestPartition
    partitions = [partition(partition_index=n, start_offset=0) for n in range(size)]
    request = AlterShareGroupOffsetsRequest(
        group_id=GROUP, topics=[shape(topic_name=TOPIC, partitions=partitions)]
    )
    (answer,) = await sharers.node.measure(request)
    assert not answer.error_code
    assert not any(each.error_code for each in answer.responses[0].partitions)


@row("DeleteShareGroupOffsets", "partitions", PARTITIONS, "DeleteShareGroupOffsets")
async def delete_offsets(sharers: Sharers, size: int) -> None:
    shape = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    request = DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=[shape(topic_name=TOPIC)])
    (answer,) = await sharers.node.measure(request)
    assert not answer.responses[0].error_code


@row("DeleteGroups of a share group", "partitions", PARTITIONS, "DeleteGroups")
async def delete(sharers: Sharers, size: int) -> None:
    await alter(sharers, size)
    (answer,) = await sharers.node.measure(DeleteGroupsRequest(groups_names=[GROUP]))
    assert not answer.results[0].error_code
