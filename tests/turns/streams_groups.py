"""A streams group (KIP-1071) of 500 members that share 5,000 tasks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeRequest
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    TopicInfo,
)
from tests.support.group.streams import Subtopology, Topology, request
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

MEMBERS: Final = 500
SOME: Final = 50
TASKS: Final = 5_000
GROUP: Final = "g"
TOPIC: Final = "topic"
SMALL: Final = "small"
SESSION_S: Final = 45
TOPOLOGY: Final = Topology(
    epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=[TOPIC])]
)


@attrs.define
class Streamers:
    """A node, and the members of its group as their clients know them."""

    node: MeteredNode
    epochs: dict[str, int] = attrs.field(factory=dict)
    tasks: dict[str, list[int]] = attrs.field(factory=dict)

    async def join(self, ids: Sequence[str]) -> None:
        """Measure the joins of members."""
        (answers,) = await self.node.measure_together([self.join_of(each) for each in ids])
        self.follow(answers)

    def join_of(self, member_id: str) -> StreamsGroupHeartbeatRequest:
        port = int(member_id[1:]) + 1
        return request(member_id, group=GROUP, topology=TOPOLOGY, endpoint=("host", port))

    def heartbeats(self, count: int) -> list[StreamsGroupHeartbeatRequest]:
        """Return heartbeats of the first members, which say what the members have."""
        return [
            request(m, epoch, group=GROUP, active={"0": self.tasks[m]} if self.tasks[m] else {})
            for m, epoch in islice(self.epochs.items(), count)
        ]

    async def beat(self, count: int) -> None:
        """Measure a heartbeat of each of the first members."""
        (answers,) = await self.node.measure_together(self.heartbeats(count))
        self.follow(answers)

    def follow(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            assert answer.error_code == 0, answer.error_message
            self.epochs[answer.member_id] = answer.member_epoch
            if answer.active_tasks is not None:
                numbers = [n for each in answer.active_tasks for n in each.partitions]
                self.tasks[answer.member_id] = numbers

    async def settle(self) -> None:
        """Beat until all members share all tasks; some heartbeats of each round are measured."""
        while sum(map(len, self.tasks.values())) < TASKS or not all(self.tasks.values()):
            await trio.sleep(2)
            await self.beat(SOME)
            others = self.heartbeats(len(self.epochs))[SOME:]
            self.follow([await self.node.call(each) for each in others])


def describe_request() -> StreamsGroupDescribeRequest:
    return StreamsGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False)


@asynccontextmanager
async def group_of_streamers(meter: TurnMeter) -> AsyncIterator[Streamers]:
    settings = {"offsets_topic_num_partitions": "1", "offsets_topic_replication_factor": "1"}
    async with metered_node(meter, **settings) as node:
        await node.create(TOPIC, TASKS)
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        await trio.sleep(10)
        await node.call(describe_request())  # The modules are loaded on first use.
        yield Streamers(node)


STREAMING: Final = Scene("a streams group of many members", group_of_streamers)
row = STREAMING.operation

JOINS: Final = "StreamsGroupHeartbeat of new members"


@row(JOINS, "members", MEMBERS, "StreamsGroupHeartbeat")
async def begin(streamers: Streamers, size: int) -> None:
    await streamers.join([f"m{number}" for number in range(size)])
    await streamers.settle()


@row("StreamsGroupHeartbeat", "members", MEMBERS, "StreamsGroupHeartbeat", after=JOINS)
async def beat(streamers: Streamers, size: int) -> None:
    """Each answer names all members, so a few answers are enough."""
    await streamers.beat(SOME)


@row("StreamsGroupDescribe", "members", MEMBERS, "StreamsGroupDescribe", after=JOINS)
async def describe(streamers: Streamers, size: int) -> None:
    (answer,) = await streamers.node.measure(describe_request())
    assert len(answer.groups[0].members) == size


@row(
    "loading of a streams group",
    "members",
    MEMBERS,
    "coordinator.loading._load_queued",
    after=JOINS,
)
async def load(streamers: Streamers, size: int) -> None:
    service = streamers.node.parts.groups().service
    with streamers.node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 1)
        await trio.sleep(5)
    await streamers.beat(SOME)


@row(
    "sessions of a streams group that expire",
    "members",
    MEMBERS,
    "coordinator.runtime._keep_deadlines",
    after=JOINS,
)
async def expire(streamers: Streamers, size: int) -> None:
    with streamers.node.meter.measuring():
        await trio.sleep(SESSION_S + 1)
    answer = await streamers.node.call(describe_request())
    assert not answer.groups[0].members
    (deleted,) = await streamers.node.measure(DeleteGroupsRequest(groups_names=[GROUP]))
    assert not deleted.results[0].error_code


def chain(length: int) -> Topology:
    """Return subtopologies that each read what a later one writes; the last one reads a topic."""

    def internal(name: str) -> TopicInfo:
        return TopicInfo(name=name, partitions=0, replication_factor=0)

    return Topology(
        epoch=0,
        subtopologies=[
            Subtopology(
                subtopology_id=f"{number:04}",
                source_topics=[SMALL] if number == length else [],
                repartition_source_topics=(
                    [] if number == length else [internal(f"repartition-{number}")]
                ),
                repartition_sink_topics=[] if number == 1 else [f"repartition-{number - 1}"],
                state_changelog_topics=[internal(f"changelog-{number}")],
            )
            for number in range(1, length + 1)
        ],
    )


@row("StreamsGroupHeartbeat of a chain", "subtopologies", 200, "StreamsGroupHeartbeat")
async def beat_of_chain(streamers: Streamers, size: int) -> None:
    """The join creates the internal topics."""
    node = streamers.node
    await node.create(SMALL, 1)
    answer = await node.call(request("m", group="short", topology=chain(2)))
    await trio.sleep(10)
    await node.call(request("m", answer.member_epoch, group="short"))  # The codec is compiled.
    join = request("m", group="chained", topology=chain(size), endpoint=("host", 1))
    (answer,) = await node.measure(join)
    assert not answer.error_code, answer.error_message
    with node.meter.measuring():
        await trio.sleep(10)
    for _ in range(2):
        (answer,) = await node.measure(request("m", answer.member_epoch, group="chained"))
        assert not answer.error_code, answer.error_message
        await trio.sleep(5)
    described = StreamsGroupDescribeRequest(
        group_ids=["chained"], include_authorized_operations=False
    )
    (answer,) = await node.measure(described)
    (member,) = answer.groups[0].members
    assert len(member.assignment.active_tasks) == size
