"""Faults of the active controller: it resigns, or is cut off until another one is elected."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import attrs
import trio

from simulation.replication.clients import World

CUT_OFF_S: Final = (2.0, 6.0)
"""The minimum and maximum time for which a controller is cut off."""


@attrs.define(eq=False)
class ControllerFaults:
    """The faults of active controllers in one run."""

    world: World
    random: Random
    mended_at: float = float("-inf")
    """The time at which the last controller that was cut off was reconnected."""

    def resign(self, nursery: trio.Nursery) -> None:
        """Let the active controller resign its leadership."""
        for machine in self.world.machines.values():
            server = machine.server
            if server is not None and machine.is_active:
                self.world.note("resign", machine.id)
                server.core.quorum.resign(server.core.quorum.leader().epoch)

    def cut_off(self, nursery: trio.Nursery) -> None:
        """Cut the active controller off for so long that another one may be elected meanwhile.

        Brokers and clients may still wait for its responses when it is reconnected.
        """
        active = [machine.id for machine in self.world.machines.values() if machine.is_active]
        if active and not self.world.wire.hidden:
            cut_off = self.hide if self.random.random() < 0.3 else self.isolate
            nursery.start_soon(cut_off, self.random.choice(active))

    async def hide(self, node: int) -> None:
        """Cut a controller off from all machines and clients for a while."""
        self.world.note("hide", node)
        self.world.wire.hidden.add(node)
        await trio.sleep(self.random.uniform(*CUT_OFF_S))
        self.world.wire.hidden.discard(node)
        self._note_mended(node)

    async def isolate(self, node: int) -> None:
        """Cut a controller off from the other controllers for a while.

        Meanwhile it decides on requests, and it loses these decisions with its leadership.
        """
        async with self.isolation(node):
            await trio.sleep(self.random.uniform(*CUT_OFF_S))

    @asynccontextmanager
    async def isolation(self, node: int) -> AsyncIterator[None]:
        """Cut a controller off from the other controllers inside the context."""
        machines = self.world.machines.values()
        others = [m.id for m in machines if m.config.is_controller and m.id != node]
        pairs = {pair for other in others for pair in ((node, other), (other, node))}
        self.world.note("cut off", node, "from", *others)
        self.world.wire.cut.update(pairs)
        yield
        self.world.wire.cut.difference_update(pairs)
        self._note_mended(node)

    def _note_mended(self, node: int) -> None:
        self.mended_at = trio.current_time()
        self.world.note("connected again", node)
