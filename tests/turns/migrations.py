"""A classic group of 1,000 members that becomes a consumer group, and a classic group again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from kwire.codec.compile import encode
from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_protocol import ConsumerProtocolAssignment
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import metered_node
from tests.support.turns.table import Scene
from tests.turns.consumers import SESSION_S, heartbeat
from tests.turns.consumers import join as consumer_join
from tests.turns.members import GROUP, MEMBERS, Members

TOPIC: Final = "topic"
PARTITIONS: Final = 100
ASSIGNMENT: Final = b"\0\1" + encode(
    ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic=TOPIC, partitions=[0])]
    ),
    1,
)
"""The assignment of each member; the coordinator does not compare assignments."""


@asynccontextmanager
async def classic_group(meter: TurnMeter) -> AsyncIterator[Members]:
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
        "group_max_session_timeout_ms": "10000000",
    }
    async with metered_node(meter, **settings) as node:
        await node.create(TOPIC, PARTITIONS)
        await node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        await trio.sleep(10)
        # The modules are loaded on first use.
        await node.call(describe_request())
        members = Members(node, assignment=ASSIGNMENT, session_ms=10_000_000)
        await members.join_anew(MEMBERS)
        await members.sync()
        yield members


def describe_request() -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False)


MIGRATED: Final = Scene("a group of many members that changes its protocol", classic_group)
row = MIGRATED.operation

UPGRADE: Final = "a classic group that becomes a consumer group"


@row(UPGRADE, "members", MEMBERS, "coordinator.steps.run")
async def upgrade(members: Members, size: int) -> None:
    (answer,) = await members.node.measure(consumer_join("consumer"))
    assert answer.error_code == 0, answer.error_message
    (described,) = (await members.node.call(describe_request())).groups
    assert len(described.members) == size + 1


@row("a consumer group that becomes a classic group", "members", MEMBERS, after=UPGRADE)
async def downgrade(members: Members, size: int) -> None:
    (answer,) = await members.node.measure(heartbeat("consumer", -1, []))
    assert answer.error_code == 0, answer.error_message
    assert len((await members.describe()).members) == size


@row("a fenced consumer whose group becomes a classic group", "members", MEMBERS)
async def fence(members: Members, size: int) -> None:
    await members.node.call(consumer_join("consumer"))
    with members.node.meter.measuring():
        await trio.sleep(SESSION_S + 1)
    assert len((await members.describe()).members) == size
