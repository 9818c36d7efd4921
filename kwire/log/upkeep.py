"""What one log directory needs done beside its requests, and what of it is due.

Rule: each directory has one of these, and tasks of its own that work through it, so that a
directory that hangs keeps nothing of another one waiting.
"""

import attrs
import trio

from kwire.log.checkpointing import Checkpointer
from kwire.log.partition_log import PartitionLog
from kwire.log.removal import Removals


@attrs.define(eq=False)
class Upkeep:
    """The checkpoints of a directory, its removals, and its logs with segments to sync."""

    checkpoints: Checkpointer
    removals: Removals
    _rolled: dict[PartitionLog, None] = attrs.field(init=False, factory=dict)
    _roll: trio.Event = attrs.field(init=False, factory=trio.Event)

    def note_roll(self, opened: PartitionLog) -> None:
        """A segment was closed, or names of removed ones are to be synced."""
        self._rolled[opened] = None
        self._roll.set()

    def forget(self, opened: PartitionLog) -> None:
        """Note that a log is gone."""
        self._rolled.pop(opened, None)
        self.checkpoints.forget(opened)

    async def wait_rolled(self) -> list[PartitionLog]:
        """Block until there are logs with segments to sync; remove and return them."""
        await self._roll.wait()
        self._roll = trio.Event()
        rolled, self._rolled = list(self._rolled), {}
        return rolled
