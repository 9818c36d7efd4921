"""Faults in several steps, each of which is likely alone but seldom coincides with the others.

Rules: a staged fault starts when all machines run and all connections work, and nothing else fails
until it ends. It destroys no more than other faults may: a disk is replaced only while other
replicas have the acknowledged records of all partitions on the disk.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from simulation.replication.stages.disks import fill_slow_disk, return_without_log
from simulation.replication.stages.leases import refuse_leader, suspend_leader
from simulation.replication.stages.machines import suspend_controller, suspend_coordinator
from simulation.replication.stages.network import (
    fence_in_vain,
    lose_decisions,
    move_during_verification,
    read_late,
)
from simulation.replication.stages.scene import Scene

STAGES: Final[Mapping[str, Callable[[Scene, trio.Nursery], Awaitable[None]]]] = {
    "fence-in-vain": fence_in_vain,
    "fill-slow-disk": fill_slow_disk,
    "lose-decisions": lose_decisions,
    "move-during-verification": move_during_verification,
    "read-late": read_late,
    "refuse-leader": refuse_leader,
    "return-without-log": return_without_log,
    "suspend-controller": suspend_controller,
    "suspend-coordinator": suspend_coordinator,
    "suspend-leader": suspend_leader,
}
"""The staged faults by name."""
DRAWN: Final = ("fence-in-vain", "move-during-verification", "read-late")
"""The staged faults that any run may have; the others run alone, with ``simulate_replication``."""


@attrs.define(eq=False)
class StagedFaults:
    """The staged faults of one run, one at a time."""

    scene: Scene
    names: Sequence[str] = DRAWN
    """The faults from which one is drawn."""
    is_running: bool = False

    async def run(self, nursery: trio.Nursery) -> None:
        """Run a random fault, and restore everything that it took away."""
        world = self.scene.world
        self.is_running = True
        try:
            await STAGES[self.scene.random.choice(self.names)](self.scene, nursery)
        finally:
            world.wire.calm()
            for machine in world.machines.values():
                machine.gate.open()
            world.is_quiet = self.is_running = False
