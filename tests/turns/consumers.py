"""A consumer group (KIP-848) of 1,000 members that read 5,000 partitions."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

MEMBERS: Final = 1_000
PARTITIONS: Final = 5_000
GROUP: Final = "g"
TOPIC: Final = "topic"
SESSION_S: Final = 45


@attrs.define
class Consumers:
    """A node, and the members of its group as their clients know them."""

    node: MeteredNode
    epochs: dict[str, int] = attrs.field(factory=dict)
    owned: dict[str, list[Any]] = attrs.field(factory=dict)

    async def join(self, ids: Sequence[str]) -> None:
        """Measure the joins of members, one after the other as clients start."""
        (answers,) = await self.node.measure_together([join(each) for each in ids])
        self.follow(answers)

    async def beat(self) -> None:
        """Measure a heartbeat of each member, which confirms what it has revoked."""
        requests = [heartbeat(each, self.epochs[each], self.owned[each]) for each in self.epochs]
        (answers,) = await self.node.measure_together(requests)
        self.follow(answers)

    async def settle(self) -> None:
        """Measure heartbeats until the group is stable."""
        while (await self.describe()).group_state != "Stable":
            await trio.sleep(2)
            await self.beat()

    def follow(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            assert answer.error_code == 0, answer.error_message
            self.epochs[answer.member_id] = answer.member_epoch
            if answer.assignment is not None:
                shape = ConsumerGroupHeartbeatRequest.TopicPartitions
                self.owned[answer.member_id] = [
                    shape(topic_id=each.topic_id, partitions=each.partitions)
                    for each in answer.assignment.topic_partitions
                ]

    async def describe(self) -> Any:
        answer = await self.node.call(describe_request())
        return answer.groups[0]


def join(member_id: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )


def heartbeat(member_id: str, epoch: int, owned: list[Any]) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=member_id, member_epoch=epoch, topic_partitions=owned
    )


def describe_request() -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False)


@asynccontextmanager
async def group_of_consumers(meter: TurnMeter) -> AsyncIterator[Consumers]:
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
    }
    async with metered_node(meter, **settings) as node:
        await node.create(TOPIC, PARTITIONS)
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        await trio.sleep(10)
        yield Consumers(node)


CONSUMED: Final = Scene("a consumer group of many members", group_of_consumers)
row = CONSUMED.operation

JOINS: Final = "ConsumerGroupHeartbeat of new members"


@row(JOINS, "members", MEMBERS, "ConsumerGroupHeartbeat")
async def begin(consumers: Consumers, size: int) -> None:
    await consumers.join([f"m{number}" for number in range(size)])
    await consumers.settle()
    described = await consumers.describe()
    assert len(described.members) == size
    assert {len(m.assignment.topic_partitions[0].partitions) for m in described.members} == {
        PARTITIONS // size
    }


@row("ConsumerGroupHeartbeat", "members", MEMBERS, "ConsumerGroupHeartbeat", after=JOINS)
async def beat(consumers: Consumers, size: int) -> None:
    await consumers.beat()


@row("ConsumerGroupDescribe", "members", MEMBERS, "ConsumerGroupDescribe", after=JOINS)
async def describe(consumers: Consumers, size: int) -> None:
    (answer,) = await consumers.node.measure(describe_request())
    assert len(answer.groups[0].members) == size


@row("a new target of a consumer group", "members", MEMBERS, "coordinator.steps.run", after=JOINS)
async def rebalance(consumers: Consumers, size: int) -> None:
    await consumers.join(["newcomer"])
    await consumers.settle()
    assert len((await consumers.describe()).members) == size + 1


@row(
    "loading of a consumer group",
    "members",
    MEMBERS,
    "coordinator.loading._load_queued",
    after=JOINS,
)
async def load(consumers: Consumers, size: int) -> None:
    service = consumers.node.parts.groups().service
    with consumers.node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 1)
        await trio.sleep(10)
    assert len((await consumers.describe()).members) >= size


@row(
    "end of the sessions of consumers",
    "members",
    MEMBERS,
    "coordinator.runtime._keep_deadlines",
    after=JOINS,
)
async def expire(consumers: Consumers, size: int) -> None:
    with consumers.node.meter.measuring():
        await trio.sleep(2 * SESSION_S)
    assert (await consumers.describe()).group_state == "Empty"


@row("DeleteGroups of a consumer group", "members", MEMBERS, "DeleteGroups", after=JOINS)
async def delete(consumers: Consumers, size: int) -> None:
    with consumers.node.meter.measuring():
        await trio.sleep(2 * SESSION_S)
    (answer,) = await consumers.node.measure(DeleteGroupsRequest(groups_names=[GROUP]))
    assert answer.results[0].error_code == 0
