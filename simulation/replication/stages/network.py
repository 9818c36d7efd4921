"""Staged network faults: late reads, fencing that is lost, slow verification, lost decisions."""

import trio

from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.coordinator.partitioning import partition_for
from kwire.types import TRANSACTION_STATE
from simulation.replication.checks import TOPIC
from simulation.replication.controller_faults import ControllerFaults
from simulation.replication.node import CONTROLLER
from simulation.replication.settings import (
    NODES,
    TIMEOUT_MS,
    TRANSACTION_PARTITIONS,
    TRANSACTIONAL_IDS,
)
from simulation.replication.stages.scene import BROKER, PREFERRED, Scene


async def read_late(scene: Scene, nursery: trio.Nursery) -> None:
    """Let a follower read a fetch response late, when its leader already follows another leader.

    The next leader has fewer records, and gets other records at their offsets. The follower does
    not learn of the next leader in time.
    """
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    leader, behind, reader = replicas
    scene.world.note("reads late", index, *replicas)
    wire = scene.world.wire
    wire.full.add((leader, behind, BROKER))
    await scene.produce(leader, index, scene.random.randint(1, 3))
    await trio.sleep(scene.random.uniform(0.1, 0.3))
    wire.full.add((leader, reader, BROKER))
    wire.full.update((node, reader, CONTROLLER) for node in scene.world.machines if node != reader)
    await scene.produce(leader, index, scene.random.randint(1, 3))
    await scene.reassign(behind, index, [behind, leader, reader])
    await scene.elect_leader(behind, TOPIC, index, PREFERRED)
    await trio.sleep(scene.random.uniform(0.1, 0.3))
    await scene.produce(behind, index, scene.random.randint(2, 6))
    await trio.sleep(scene.random.uniform(0.1, 0.5))
    wire.drain([(leader, reader, BROKER)])
    await trio.sleep(scene.random.uniform(0.0, 0.3))


async def fence_in_vain(scene: Scene, nursery: trio.Nursery) -> None:
    """Let a second client start with a transactional id, of which only the coordinator learns.

    The coordinator's responses to its followers wait until its process ends.
    """
    name = scene.random.choice(TRANSACTIONAL_IDS)
    index = partition_for(name, TRANSACTION_PARTITIONS)
    replicas = await scene.prepare(nursery, TRANSACTION_STATE, index)
    if not replicas:
        return
    coordinator, *followers = replicas
    scene.world.note("fences in vain", name, coordinator)
    scene.world.rivals.add(name)
    scene.world.wire.full.update((coordinator, node, BROKER) for node in followers)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
    nursery.start_soon(_ask, scene, coordinator, request)
    await trio.sleep(scene.random.uniform(0.2, 1.5))
    scene.world.machines[coordinator].kill(scene.random)


async def _ask(scene: Scene, node: int, request: InitProducerIdRequest) -> None:
    await scene.client().call(node, request, version=5)


async def move_during_verification(scene: Scene, nursery: trio.Nursery) -> None:
    """Move a follower to another broker while coordinators answer slowly.

    When the move completes, a new leader epoch begins with the same leader.
    """
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    leader, _, follower = replicas
    (spare,) = set(NODES) - set(replicas)
    scene.world.note("move during verification", index, *replicas)
    for coordinator in range(TRANSACTION_PARTITIONS):
        state = scene.books.image.partition(TRANSACTION_STATE, coordinator)
        if state is not None and state.leader not in (leader, -1):
            scene.world.wire.slow.add(state.leader)
    for target in (spare, follower):
        members = [node for node in scene.state(index).replicas if node in replicas[:2]]
        await scene.reassign(leader, index, [*members, target])
        await trio.sleep(scene.random.uniform(0.5, 2.0))


async def lose_decisions(scene: Scene, nursery: trio.Nursery) -> None:
    """Cut the active controller off from the other controllers until another one is elected.

    Its decisions during that time are lost, and must not be confirmed to an administrator.
    """
    if not await scene.prepare(nursery, TOPIC, 0):
        return
    active = [machine.id for machine in scene.world.machines.values() if machine.is_active]
    if len(active) == 1:
        await ControllerFaults(scene.world, scene.random).isolate(active[0])
