"""Staged faults of leases: suspended leaders, and leaders that no controller lets connect."""

from collections.abc import Awaitable, Callable

import trio

from simulation.replication.checks import TOPIC
from simulation.replication.lease_faults import SESSION_S, LeaseFaults
from simulation.replication.scene import Scene
from simulation.replication.settings import WITHOUT_CONTROLLERS_S

_BETWEEN_S = 0.3
"""The seconds between two requests to the leader."""


async def suspend_leader(scene: Scene, nursery: trio.Nursery) -> None:
    """Suspend the machine of a leader for longer than its session.

    Requests wait for the leader until its machine continues. By then the controller has fenced it.
    """

    async def suspend(leader: int, seconds: float) -> None:
        machine = scene.world.machines[leader]
        await LeaseFaults(scene.world, scene.random).suspend(machine, SESSION_S + seconds)

    await _mislead_leader(scene, nursery, suspend, 2 * SESSION_S)


async def refuse_leader(scene: Scene, nursery: trio.Nursery) -> None:
    """Refuse a leader's connections to the controllers, which fence it.

    To the leader they look as if they had ended, so it serves for a limited time.
    """

    async def refuse(leader: int, seconds: float) -> None:
        faults = LeaseFaults(scene.world, scene.random)
        await faults.refuse_at_controllers(leader, WITHOUT_CONTROLLERS_S + seconds)

    await _mislead_leader(scene, nursery, refuse, WITHOUT_CONTROLLERS_S)


async def _mislead_leader(
    scene: Scene,
    nursery: trio.Nursery,
    mislead: Callable[[int, float], Awaitable[None]],
    seconds_max: float,
) -> None:
    """Produce to a leader while a fault misleads its lease."""
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    async with trio.open_nursery() as misleading:

        async def produce() -> None:
            while True:
                nursery.start_soon(scene.produce, replicas[0], index, 1)
                await trio.sleep(_BETWEEN_S)

        misleading.start_soon(produce)
        await mislead(replicas[0], scene.random.uniform(0.0, seconds_max))
        await trio.sleep(_BETWEEN_S)
        misleading.cancel_scope.cancel()
