"""The background work of one log directory: checkpoints, removals and segments to sync.

Rule: each directory has one of these, and tasks of its own that do the work, so that a directory
that hangs does not hold up another.
"""

import attrs
import trio

from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.removal import Removals
from kwire.log.partition_log import PartitionLog


@attrs.define(eq=False)
class Upkeep:
    """The checkpoints of a directory, its removals, and its logs with segments to sync."""

    checkpoints: Checkpointer
    removals: Removals
    _rolled: dict[PartitionLog, None] = attrs.field(init=False, factory=dict)
    _roll: trio.Event = attrs.field(init=False, factory=trio.Event)

    def note_roll(self, opened: PartitionLog) -> None:
        """Note that a log has a closed segment, or removed names, to sync."""
        self._rolled[opened] = None
        self._roll.set()

    def forget(self, opened: PartitionLog) -> None:
        """Drop a removed log from the work to do."""
        self._rolled.pop(opened, None)
        self.checkpoints.forget(opened)

    async def wait_rolled(self) -> list[PartitionLog]:
        """Block until there are logs with segments to sync; remove and return them."""
        await self._roll.wait()
        self._roll = trio.Event()
        rolled, self._rolled = list(self._rolled), {}
        return rolled
