"""Staged faults of leaders whose leases are misled: by a suspended machine, or by a firewall.

Producers wait for the leader all the time, so it is asked to append records at the moment at which
it may still believe that it is the leader.
"""

from typing import Final

import trio

from simulation.replication.checks import TOPIC
from simulation.replication.settings import SESSION_S
from simulation.replication.stages.scene import Scene

_BETWEEN_S: Final = 0.3
"""The time between two requests to the leader."""


async def suspend_leader(scene: Scene, nursery: trio.Nursery) -> None:
    """Suspend the machine of a leader for longer than its session, so that it is fenced."""
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    leader, length_s = replicas[0], scene.random.uniform(1.0, 3.0) * SESSION_S
    machine = scene.world.machines[leader]
    scene.world.note("suspend leader", index, leader, round(length_s, 1))
    machine.gate.suspend()
    await _produce(scene, nursery, leader, index, length_s)
    scene.world.note("resume", leader)
    machine.gate.open()
    await trio.sleep(_BETWEEN_S)


async def refuse_leader(scene: Scene, nursery: trio.Nursery) -> None:
    """Let a firewall refuse a leader's connections to the active controller until it is fenced.

    The other controllers answer the leader that they do not lead, and it does not learn that it is
    fenced.
    """
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    active = [machine.id for machine in scene.world.machines.values() if machine.is_active]
    if not replicas or len(active) != 1 or active[0] == replicas[0]:
        return
    leader, length_s = replicas[0], scene.random.uniform(1.5, 3.0) * SESSION_S
    scene.world.note("refuse leader", index, leader, active[0], round(length_s, 1))
    scene.world.wire.refuse([(leader, active[0])], resets=scene.random.random() < 0.5)
    await _produce(scene, nursery, leader, index, length_s)


async def _produce(
    scene: Scene, nursery: trio.Nursery, leader: int, index: int, seconds: float
) -> None:
    """Keep asking a leader to append records for some time; each request may wait longer."""
    with trio.move_on_after(seconds):
        while True:
            nursery.start_soon(scene.produce, leader, index, 1)
            await trio.sleep(_BETWEEN_S)
