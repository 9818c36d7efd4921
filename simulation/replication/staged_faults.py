"""Faults in several steps: each step is likely by itself, but they seldom meet by chance.

Rules: a staged fault begins when all machines run and the connections are whole; while it lasts
nothing else fails. It takes away no more than other faults may: a disk is replaced only while the
other replicas have what was acknowledged of all partitions on it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from kwire import attrs
from simulation.replication.disk_stages import fill_slow_disk, return_without_log
from simulation.replication.network_stages import (
    fence_in_vain,
    lose_decisions,
    move_during_verification,
    read_late,
)
from simulation.replication.scene import Scene

STAGES: Final[Mapping[str, Callable[[Scene, trio.Nursery], Awaitable[None]]]] = {
    "fence-in-vain": fence_in_vain,
    "fill-slow-disk": fill_slow_disk,
    "lose-decisions": lose_decisions,
    "move-during-verification": move_during_verification,
    "read-late": read_late,
    "return-without-log": return_without_log,
}
"""The staged faults by name."""
DRAWN: Final = ("fence-in-vain", "move-during-verification", "read-late")
"""Those that every run may have; the others are played alone, with ``simulate_replication``."""


@attrs.define(eq=False)
class StagedFaults:
    """The staged faults of one run, one at a time."""

    scene: Scene
    names: Sequence[str] = DRAWN
    """The faults of which one is drawn."""
    is_running: bool = False

    async def run(self, nursery: trio.Nursery) -> None:
        """Run a fault that is drawn, after which everything it took away is back."""
        world = self.scene.world
        self.is_running = True
        try:
            await STAGES[self.scene.random.choice(self.names)](self.scene, nursery)
        finally:
            world.wire.calm()
            world.is_quiet = self.is_running = False
