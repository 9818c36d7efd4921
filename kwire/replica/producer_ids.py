"""Producer ids for idempotent producers, out of blocks that the controller gives away.

A block that was asked for is never asked for again, whatever becomes of this broker, so ids are
unique for ever (invariant 47); what is left of a block at shutdown is lost, as in Kafka.
"""

from collections.abc import Awaitable, Callable

import attrs


@attrs.define(eq=False)
class ProducerIds:
    """Gives out ids one by one; awaits only for a new block."""

    allocate: Callable[[], Awaitable[tuple[int, int]]]
    """Asks the controller: the first id of a block, and how many there are."""
    _next: int = 0
    _end: int = 0

    async def take(self) -> int:
        while self._next >= self._end:
            first, count = await self.allocate()
            # Another request may have got a block meanwhile: the newer one is dropped.
            if self._next >= self._end:
                self._next, self._end = first, first + count
        found = self._next
        self._next += 1
        return found
