"""Faults that mislead leases and sessions: suspended machines, and firewalls.

A suspended machine sends and receives nothing, its monotonic clock stands still, and its sockets
keep what was sent to it. A firewall refuses connections to a process that runs, so other nodes take
the process for ended. Both can last longer than every session and lease.
"""

from random import Random
from typing import Final

import attrs
import trio

from simulation.replication.clients import World
from simulation.replication.node import SimMachine
from simulation.replication.settings import SESSION_S

SUSPENDED_S: Final = (0.2, SESSION_S, 10 * SESSION_S)
"""The shortest suspension, one that ends with the session, and the longest one."""


@attrs.define(eq=False)
class LeaseFaults:
    """The suspensions and firewalls of one run."""

    world: World
    random: Random

    def suspend(self, nursery: trio.Nursery) -> None:
        """Suspend a machine, in half of the cases for longer than its session."""
        running = [m for m in self.world.machines.values() if m.is_alive and not m.is_paused]
        if running:
            shortest, session, longest = SUSPENDED_S
            is_short = self.random.random() < 0.5
            bounds = (shortest, session) if is_short else (session, longest)
            machine = self.random.choice(running)
            nursery.start_soon(self._suspend, machine, self.random.uniform(*bounds))

    async def _suspend(self, machine: SimMachine, seconds: float) -> None:
        gate = machine.gate
        self.world.note("suspend", machine.id, round(seconds, 1))
        gate.suspend()
        await trio.sleep(seconds)
        if gate.is_shut:  # Otherwise the process has ended, or all faults have.
            gate.open()
            self.world.note("resume", machine.id)

    def refuse(self, nursery: trio.Nursery) -> None:
        """Let firewalls refuse the connections of some nodes to one, or of one to some.

        The processes that are refused or refuse go on. The firewalls stay until the network is
        mended.
        """
        machines = self.world.machines
        node = self.random.choice(list(machines))
        others = [other for other in machines if other != node]
        controllers = [other for other in others if machines[other].config.is_controller]
        active = [other for other in others if machines[other].is_active]
        chosen = [self.random.choice(others)]
        peers = self.random.choice((others, controllers, active or chosen, chosen))
        inwards = [(peer, node) for peer in peers]
        outwards = [(node, peer) for peer in peers]
        links = self.random.choice((inwards, inwards, outwards, [*inwards, *outwards]))
        resets = self.random.random() < 0.5
        self.world.note("refuse", *links, "with resets" if resets else "")
        self.world.wire.refuse(links, resets=resets)
