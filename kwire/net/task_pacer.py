"""Lets only a few tasks go on in each turn of the loop when many become ready together."""

from trio.lowlevel import ParkingLot, checkpoint

from kwire import attrs


@attrs.define(eq=False)
class TaskPacer:
    """Tasks that wait in :meth:`wait_turn`, of which a few go on in each turn of :meth:`run`.

    A task that waits before :meth:`run` has begun waits for it.
    """

    tasks_per_turn: int
    _waiting: ParkingLot = attrs.field(factory=ParkingLot)
    _arrived: ParkingLot = attrs.field(factory=ParkingLot)

    async def wait_turn(self) -> None:
        """Wait for a place in this turn or a later one."""
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
