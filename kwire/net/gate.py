"""Lets only a few tasks go on in each turn of the loop when many become ready together."""

import attrs
from trio.lowlevel import ParkingLot, checkpoint


@attrs.define(eq=False)
class Gate:
    """Tasks wait at :meth:`enter`; :meth:`run` lets ``a_turn`` of them go on in each turn.

    A task that enters before :meth:`run` has begun waits for it.
    """

    a_turn: int
    _waiting: ParkingLot = attrs.field(factory=ParkingLot)
    _arrived: ParkingLot = attrs.field(factory=ParkingLot)

    async def enter(self) -> None:
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
                self._waiting.unpark(count=self.a_turn)
                await checkpoint()
