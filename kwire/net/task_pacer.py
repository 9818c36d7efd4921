"""Lets only a few tasks continue per turn of the event loop when many become ready."""

import attrs
from trio.lowlevel import ParkingLot, checkpoint


@attrs.define(eq=False, repr=False)
class TaskPacer:
    """The tasks in :meth:`wait_turn`, of which a few continue in each turn of :meth:`run`.

    A task that calls :meth:`wait_turn` before :meth:`run` has begun waits for it.
    """

    tasks_per_turn: int
    _waiting: ParkingLot = attrs.field(factory=ParkingLot)
    _arrived: ParkingLot = attrs.field(factory=ParkingLot)

    async def wait_turn(self) -> None:
        """Wait for a place in this turn or in a later turn."""
        if not self._waiting:
            self._arrived.unpark()
        await self._waiting.park()

    async def run(self) -> None:
        """Serve until cancelled; sleep while no task waits."""
        while True:
            if not self._waiting:
                await self._arrived.park()
            while self._waiting:
                self._waiting.unpark(count=self.tasks_per_turn)
                await checkpoint()
