"""Waits of the controller's answers: for the commit, and only for local clients for the broker."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from kwire.codec.apis import ListenerType
from kwire.handlers.create_topics import create_topics
from kwire.handlers.shared.context import Context
from kwire.raftmeta.controller.brokers import decide_heartbeat, decide_register_broker
from kwire.raftmeta.controller.leader_update_queue import SLICE_PARTITIONS
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.storage_format.format import DEFAULT_FEATURES, feature_records
from simulation.raft.memory_storage import MemoryStorage
from tests.support.handlers.services import services_of
from tests.support.raftmeta.metadata_node import Node
from tests.support.raftmeta.requests import beat, create, register


@asynccontextmanager
async def node_with_hung_disk() -> AsyncIterator[tuple[Node, Callable[[], None]]]:
    """Yield a combined node, and a function that makes its broker hang in applying metadata."""
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    hangs = False

    async def apply(delta: Any) -> None:
        if hangs:
            await trio.sleep_forever()

    def hang() -> None:
        nonlocal hangs
        hangs = True

    node.publisher.add_applier(apply)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.publisher.run)
        await nursery.start(node.periodic_tasks.run)
        await node.broker(b"a").start()
        with trio.fail_after(3600):
            yield node, hang
        nursery.cancel_scope.cancel()


async def start_broker(node: Node, broker: int) -> int:
    """Register and unfence another broker; return its epoch."""
    reply = await node.controller.call(decide_register_broker, register(broker))
    epoch: int = reply.broker_epoch
    answer = await node.controller.call(decide_heartbeat, beat(broker, epoch))
    assert not answer.is_fenced
    return epoch


async def test_silent_broker_is_fenced_while_the_local_disk_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 44: the controller's progress depends on the quorum's disk alone."""
    async with node_with_hung_disk() as (node, hang):
        hang()
        await start_broker(node, 2)
        await start_broker(node, 3)
        await trio.sleep(20)
        brokers = node.publisher.image.brokers
        assert (brokers[2].fenced, brokers[3].fenced) == (True, True)


async def test_other_nodes_are_answered_while_the_local_disk_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with node_with_hung_disk() as (node, hang):
        hang()
        context = Context(
            services=services_of(active_controller=node.active_controller),
            listener_type=ListenerType.CONTROLLER,
        )
        with trio.fail_after(60):
            answer = await create_topics(context, create("t"))
        assert answer is not None
        assert answer.topics[0].error_code == 0
        assert node.publisher.image.topic("t") is not None


async def test_local_client_is_answered_when_the_broker_serves_the_topic(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Clients produce as soon as the creation is answered."""
    async with node_with_hung_disk() as (node, hang):
        context = Context(
            services=services_of(active_controller=node.active_controller),
            listener_type=ListenerType.BROKER,
        )
        await create_topics(context, create("t"))
        assert node.publisher.applied.topic("t") is not None
        hang()
        with trio.move_on_after(60) as waiting:
            await create_topics(context, create("u"))
        assert waiting.cancelled_caught, "committed, and not served yet"
        assert node.publisher.image.topic("u") is not None


async def test_controller_continues_leader_updates_in_bounded_batches(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node(MemoryStorage(), list(feature_records(DEFAULT_FEATURES)))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.quorum.run)
        await nursery.start(node.periodic_tasks.run)
        await node.broker(b"a").start()
        await start_broker(node, 2)
        await node.controller.call(decide_create_topics, create("t", 5_000))
        before = len(node.watcher.batches)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    sizes = [len(batch.records) for batch in node.watcher.batches[before:]]
    topic = node.publisher.image.topic("t")
    assert topic is not None
    assert {partition.leader for partition in topic.partitions.values()} == {1, -1}
    assert 2_500 < sum(sizes) < 2_600
    assert max(sizes) <= SLICE_PARTITIONS + 1
