"""Producer ids for idempotent producers, from blocks that the controller allocates.

The controller never allocates a block twice, even if this broker fails, so ids are unique forever
(invariant 47). The unused rest of a block is lost at shutdown, as in Kafka.
"""

from collections.abc import Awaitable, Callable

import attrs

from kwire.errors import CoordinatorLoadInProgress, KafkaError


@attrs.define(eq=False, repr=False)
class ProducerIds:
    """The source of producer ids; :meth:`take` waits only when a new block is needed."""

    allocate: Callable[[], Awaitable[tuple[int, int]]]
    """Requests a block from the controller; returns its first id and its size."""
    _next: int = 0
    _end: int = 0

    async def take(self) -> int:
        """Return a producer id; raises CoordinatorLoadInProgress, which makes clients retry."""
        while self._next >= self._end:
            try:
                first, count = await self.allocate()
            except KafkaError as error:
                raise CoordinatorLoadInProgress from error
            # Another task may have received a block meanwhile; then this block is dropped.
            if self._next >= self._end:
                self._next, self._end = first, first + count
        producer_id = self._next
        self._next += 1
        return producer_id
