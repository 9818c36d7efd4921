"""Decisions of a controller of 3,000 partitions on three brokers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.handlers.list_partition_reassignments import list_partition_reassignments
from kwire.handlers.shared.context import Context
from kwire.raftmeta.controller.brokers import (
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.leader_updates import decide_leader_updates
from kwire.raftmeta.controller.partitions import (
    PREFERRED,
    decide_alter_partition,
    decide_assign_directories,
    decide_elect_leaders,
    decide_elect_unclean,
    decide_reassign,
    decide_rebalance_leaders,
)
from kwire.raftmeta.metadata.image import TopicImage
from kwire.types import NO_LEADER
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import cluster_of, directory
from tests.support.raftmeta.one_leader import OneLeader, active_controller
from tests.support.raftmeta.requests import beat
from tests.support.raftmeta.requests import register as registration_of
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 3_000
MOST: Final = 10_000
"""More partitions than the controller checks in one turn."""
SEEN: Final = 40_000
"""Partitions that a decision only looks at."""
TOPIC: Final = "large"


@attrs.frozen
class Decisions:
    """The meter, and what makes active controllers of ``size`` partitions that broker 2 leads."""

    meter: TurnMeter

    async def controller(self, size: int, replicas: tuple[int, ...] = (2, 1)) -> Controller:
        """Return a controller whose records are committed at once."""
        controller = active_controller(OneLeader(at_once=True), cluster_of(size, replicas=replicas))
        await controller.wait_ready()
        return controller

    async def measure(self, controller: Controller, decide: Any, request: Any = None) -> Any:
        """Measure a decision, from the call to the answer."""
        await trio.lowlevel.checkpoint()
        with self.meter.measuring():
            return await controller.call(decide, request)


@asynccontextmanager
async def decisions(meter: TurnMeter) -> AsyncIterator[Decisions]:
    yield Decisions(meter)


DECISIONS: Final = Scene("decisions of the controller", decisions)
row = DECISIONS.operation


def topic_of(controller: Controller) -> TopicImage:
    topic = controller.state.image.topic(TOPIC)
    assert topic is not None
    return topic


def leaders(controller: Controller) -> set[int]:
    return {partition.leader for partition in topic_of(controller).partitions.values()}


def reassign_request(size: int) -> AlterPartitionReassignmentsRequest:
    shape = AlterPartitionReassignmentsRequest.ReassignableTopic
    partitions = [
        shape.ReassignablePartition(partition_index=number, replicas=[1, 3])
        for number in range(size)
    ]
    return AlterPartitionReassignmentsRequest(
        topics=[shape(name=TOPIC, partitions=partitions)], timeout_ms=60_000
    )


@row("AlterPartitionReassignments", "partitions", ALL, "AlterPartitionReassignments")
async def reassign(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    reply = await scene.measure(controller, decide_reassign, reassign_request(size))
    assert not any(p.error_code for p in reply.responses[0].partitions)
    assert all(p.adding == (3,) for p in topic_of(controller).partitions.values())


@row("ListPartitionReassignments of all", "partitions", 10_000, "ListPartitionReassignments")
async def list_reassignments(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    await controller.call(decide_reassign, reassign_request(size))
    context = Context(
        services=services_of(image=controller.state.image),
        listener_type=ListenerType.BROKER,
        listener="PLAINTEXT",
        may_forward=True,
    )
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        answer: Any = await list_partition_reassignments(
            context, ListPartitionReassignmentsRequest(topics=None)
        )
    assert len(answer.topics[0].partitions) == size


def isr_request(controller: Controller, leader: int, members: list[int]) -> AlterPartitionRequest:
    """Return the request of a leader for the same ISR in all partitions."""
    shape = AlterPartitionRequest.TopicData
    topic = topic_of(controller)
    member = shape.PartitionData.BrokerState
    data = [
        shape.PartitionData(
            partition_index=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[member(broker_id=broker) for broker in members],
        )
        for number, partition in topic.partitions.items()
    ]
    return AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=leader * 100,
        topics=[shape(topic_id=topic.id, partitions=data)],
    )


@row("AlterPartition", "partitions", ALL, "AlterPartition")
async def alter_partition(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    reply = await scene.measure(controller, decide_alter_partition, isr_request(controller, 2, [2]))
    assert all(answer.isr == [2] for answer in reply.topics[0].partitions)


@row("AssignReplicasToDirs", "partitions", ALL, "AssignReplicasToDirs")
async def assign_directories(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    shape = AssignReplicasToDirsRequest.DirectoryData
    data = shape.TopicData.PartitionData
    topic = shape.TopicData(
        topic_id=topic_of(controller).id,
        partitions=[data(partition_index=number) for number in range(size)],
    )
    request = AssignReplicasToDirsRequest(
        broker_id=2, broker_epoch=200, directories=[shape(id=directory(9), topics=[topic])]
    )
    reply = await scene.measure(controller, decide_assign_directories, request)
    partitions = reply.directories[0].topics[0].partitions
    assert not any(answer.error_code for answer in partitions)


async def repeat(ask: Callable[[Any], Awaitable[Any]], decide: Any) -> None:
    """Ask for a decision until nothing is left to decide."""
    while await ask(decide):
        pass


def silence(controller: Controller, broker: int) -> None:
    """Let the session of a broker end."""
    session = controller.state.sessions.get(broker)
    assert session is not None
    session.heartbeat_at -= 1000


async def fence(controller: Controller, broker: int) -> None:
    """Fence a broker, which is not measured."""
    silence(controller, broker)
    ask = partial(controller.call, request=None)
    await ask(decide_fence_stale)
    await repeat(ask, decide_leader_updates)


@row(
    "fencing of a leader",
    "partitions",
    ALL,
    "raftmeta.controller.periodic_tasks._fence_stale",
    "raftmeta.controller.periodic_tasks._update_leaders",
)
async def fence_leader(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    silence(controller, 2)
    ask = partial(scene.measure, controller)
    await ask(decide_fence_stale)
    await repeat(ask, decide_leader_updates)
    assert leaders(controller) == {1}


@row("return of the only leader", "partitions", ALL, "BrokerHeartbeat")
async def unfence(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size, (2,))
    await fence(controller, 2)
    assert leaders(controller) == {NO_LEADER}
    ask = partial(scene.measure, controller)
    await ask(decide_heartbeat, beat(2, 200))
    await repeat(ask, decide_leader_updates)
    assert leaders(controller) == {2}


@row(
    "elections where unclean leaders are allowed",
    "partitions",
    ALL,
    "raftmeta.controller.periodic_tasks._elect_unclean",
)
async def elect_unclean(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size, (2,))
    await fence(controller, 2)
    ask = partial(scene.measure, controller)
    await ask(decide_elect_unclean)
    await repeat(ask, decide_leader_updates)


@row("registration of a broker that was killed", "partitions", ALL, "BrokerRegistration")
async def register(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    await scene.measure(controller, decide_register_broker, registration_of(2))
    assert leaders(controller) == {1}


@row("registration of a killed broker with the only replicas", "partitions", MOST)
async def register_alone(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size, (2,))
    await scene.measure(controller, decide_register_broker, registration_of(2))
    assert leaders(controller) == {NO_LEADER}


@row("unregistration of a broker", "partitions", ALL, "UnregisterBroker")
async def unregister(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    await scene.measure(controller, decide_unregister_broker, UnregisterBrokerRequest(broker_id=2))
    assert leaders(controller) == {1}


@row("unregistration of a broker with the only replicas", "partitions", MOST)
async def unregister_alone(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size, (2,))
    await scene.measure(controller, decide_unregister_broker, UnregisterBrokerRequest(broker_id=2))
    assert leaders(controller) == {NO_LEADER}


async def with_others_leading(scene: Decisions, size: int) -> Controller:
    """Return a controller of partitions that broker 1 leads, though broker 2 is preferred."""
    controller = await scene.controller(size)
    await fence(controller, 2)
    await controller.call(decide_heartbeat, beat(2, 200))
    await controller.call(decide_alter_partition, isr_request(controller, 1, [2, 1]))
    assert leaders(controller) == {1}
    return controller


@row("elections of preferred leaders on request", "partitions", ALL, "ElectLeaders")
async def elect_on_request(scene: Decisions, size: int) -> None:
    controller = await with_others_leading(scene, size)
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=60_000)
    await scene.measure(controller, decide_elect_leaders, request)
    assert leaders(controller) == {2}


@row("elections for all partitions, none of which is needed", "partitions", SEEN)
async def elect_none(scene: Decisions, size: int) -> None:
    controller = await scene.controller(size)
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=60_000)
    reply = await scene.measure(controller, decide_elect_leaders, request)
    assert not reply.replica_election_results[0].partition_result


@row(
    "elections of preferred leaders",
    "partitions",
    ALL,
    "raftmeta.controller.periodic_tasks._rebalance_leaders",
)
async def rebalance(scene: Decisions, size: int) -> None:
    controller = await with_others_leading(scene, size)
    await repeat(partial(scene.measure, controller), decide_rebalance_leaders)
    assert leaders(controller) == {2}
