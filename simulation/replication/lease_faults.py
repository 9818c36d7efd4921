"""Faults that mislead the leases of brokers: suspended machines and refused connections.

A firewall that refuses connections looks as if the processes behind it had ended. So a broker that
it cuts off from the controllers may serve for a limited time although they have fenced it
(docs/decisions/0021).
"""

from collections.abc import Set
from random import Random
from typing import Final

import attrs
import trio

from simulation.replication.clients import World
from simulation.replication.links import address_of, host_of
from simulation.replication.node import SimMachine
from simulation.replication.settings import (
    CONTROLLER_PORT,
    SESSION_MS,
    WITHOUT_CONTROLLERS_S,
)

SESSION_S: Final = SESSION_MS / 1000


@attrs.define(eq=False)
class LeaseFaults:
    """The suspensions and refusals of one run."""

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

    async def refuse_at_controllers(self, node: int, seconds: float) -> None:
        """Refuse a broker's connections to the controllers on other machines."""
        machines = self.world.machines.values()
        others = [m.id for m in machines if m.config.is_controller and m.id != node]
        self.world.note("refuse", node, "at controllers", *others)
        self._mislead(node, WITHOUT_CONTROLLERS_S)
        addresses = [address_of(host_of(other), CONTROLLER_PORT) for other in others]
        await self._refuse({(node, address) for address in addresses}, seconds)

    def _mislead(self, node: int, seconds: float) -> None:
        misled_until = self.world.wire.misled_until
        until = trio.current_time() + seconds
        misled_until[node] = max(until, misled_until.get(node, until))

    async def _refuse(self, links: Set[tuple[int, str]], seconds: float) -> None:
        wire = self.world.wire
        wire.refuse(links)
        await trio.sleep(seconds)
        wire.refused.difference_update(links)
        self.world.note("connections are accepted again")
