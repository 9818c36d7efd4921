"""Requests about the states of 10,000 share partitions, and their clean-up."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, StateBatch
from kwire.share.state import messages
from kwire.share.state.model import StateWrite
from kwire.share.state.shard import ShareStateShard
from kwire.types import SHARE_GROUP_STATE
from tests.support.share.coordinator import Topics
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

TOPIC_PARTITIONS: Final = 1000
TOPICS: Final = [f"topic-{number}" for number in range(10)]
ALL: Final = TOPIC_PARTITIONS * len(TOPICS)
GROUP: Final = "g"
BATCHES: Final = 2000
"""The records that consumers of a share partition may hold, by Kafka's default."""

T = TypeVar("T")


@asynccontextmanager
async def node_with_topics(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    prefix = "share_coordinator_state_topic_"
    settings = {
        f"{prefix}num_partitions": "1",
        f"{prefix}replication_factor": "1",
        f"{prefix}min_isr": "1",
        "share_coordinator_snapshot_update_records_per_snapshot": "2",
    }
    async with metered_node(meter, **settings) as node:
        await node.create_all(TOPICS, TOPIC_PARTITIONS)
        await node.call(find(every(node, None)))
        await trio.sleep(10)
        yield node


STATES: Final = Scene("states of share partitions", node_with_topics)
row = STATES.operation


def every(node: MeteredNode, value: T) -> dict[SharePartition, T]:
    """Return the same value for each share partition."""
    topic_ids = node.server.services.current.image.topic_ids
    return {
        SharePartition(GROUP, topic_ids[name], index): value
        for name in TOPICS
        for index in range(TOPIC_PARTITIONS)
    }


def find(states: Mapping[SharePartition, object]) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=2, coordinator_keys=[of.key for of in states])


def machine(node: MeteredNode) -> ShareStateShard:
    (shard,) = node.parts.share_states().service.machines()
    return shard


@row("FindCoordinator of share partitions", "share partitions", ALL, "FindCoordinator")
async def find_all(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(find(every(node, None)))
    assert not any(coordinator.error_code for coordinator in answer.coordinators)


@row("InitializeShareGroupState", "share partitions", ALL, "InitializeShareGroupState")
async def initialize(node: MeteredNode, size: int) -> None:
    request = messages.initialize_request(GROUP, every(node, InitialState(1, 0)))
    await node.measure(request)
    assert len(machine(node).states) == size


AFTER: Final = "InitializeShareGroupState"


@row("WriteShareGroupState", "share partitions", ALL, "WriteShareGroupState", after=AFTER)
async def write(node: MeteredNode, size: int) -> None:
    written = StateWrite(1, 0, -1, 0, [StateBatch(3, 5, 2, 1)])
    (answer,) = await node.measure(messages.write_request(GROUP, every(node, written)))
    assert not any(messages.failures(GROUP, answer).values())


@row("WriteShareGroupState of one", "batches", BATCHES, "WriteShareGroupState", after=AFTER)
async def write_one(node: MeteredNode, size: int) -> None:
    of = next(iter(every(node, None)))
    batches = [StateBatch(2 * number, 2 * number, 2, 1) for number in range(size)]
    written = StateWrite(1, 0, -1, 0, batches)
    (answer,) = await node.measure(messages.write_request(GROUP, {of: written}))
    assert not any(messages.failures(GROUP, answer).values())
    await node.call(messages.initialize_request(GROUP, {of: InitialState(1, 0)}))


@row("ReadShareGroupState", "share partitions", ALL, "ReadShareGroupState", after=AFTER)
async def read(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(messages.read_request(GROUP, every(node, 5)))
    assert len(messages.read_results(GROUP, answer)) == size


@row(
    "ReadShareGroupStateSummary",
    "share partitions",
    ALL,
    "ReadShareGroupStateSummary",
    after=AFTER,
)
async def summarize(node: MeteredNode, size: int) -> None:
    request = messages.summary_request(GROUP, list(every(node, None)))
    (answer,) = await node.measure(request)
    assert len(messages.summary_results(GROUP, answer)) == size


@row("loading of states", "share partitions", ALL, "coordinator.loading._load_queued", after=AFTER)
async def load(node: MeteredNode, size: int) -> None:
    service = node.parts.share_states().service
    with node.meter.measuring():
        service.on_resigned(0)
        service.on_elected(0, 2)
        await trio.sleep(30)
    assert len(machine(node).states) == size


@row(
    "pruning and copies of idle states",
    "share partitions",
    ALL,
    "share.state.coordinator._prune_all",
    after=AFTER,
)
async def prune(node: MeteredNode, size: int) -> None:
    log = node.parts.replicas.partitions.get(SHARE_GROUP_STATE, 0).log
    with node.meter.measuring():
        await trio.sleep(700)
    assert log.log_start >= size


@row("DeleteShareGroupState", "share partitions", ALL, "DeleteShareGroupState", after=AFTER)
async def delete(node: MeteredNode, size: int) -> None:
    request = messages.delete_request(GROUP, list(every(node, None)))
    await node.measure(request)
    assert not machine(node).states


@row("deletion of states with their topics", "share partitions", ALL, after=AFTER)
async def delete_topics(node: MeteredNode, size: int) -> None:
    await node.call(messages.initialize_request(GROUP, every(node, InitialState(1, 0))))
    machine(node).topics = Topics(set(node.server.services.current.image.topics))
    with node.meter.measuring():
        node.parts.share_states().on_topics_deleted()
        await trio.sleep(30)
    assert not machine(node).states
