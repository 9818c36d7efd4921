"""The fault that misleads the lease of a broker: its machine is suspended."""

from random import Random
from typing import Final

import attrs
import trio

from simulation.replication.clients import World
from simulation.replication.node import SimMachine
from simulation.replication.settings import SESSION_MS

SESSION_S: Final = SESSION_MS / 1000


@attrs.define(eq=False)
class LeaseFaults:
    """The suspensions of one run."""

    world: World
    random: Random

    async def suspend(self, machine: SimMachine, seconds: float) -> None:
        """Suspend a machine: its process, its monotonic clock and its timers stop."""
        gate = machine.gate
        self.world.note("suspend", machine.id, round(seconds, 1))
        gate.suspend()
        try:
            await trio.sleep(seconds)
        finally:
            gate.open()
        self.world.note("continue", machine.id)
