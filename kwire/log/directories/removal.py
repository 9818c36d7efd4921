"""The delayed removal of renamed files and directories: ``file.delete.delay.ms``.

Each log directory has one timer and one removal at a time: the file system needs a while to remove
a file of a gigabyte, and a thread that removes thousands of names competes with the event loop for
the interpreter. A removal that fails while the directory stays online, for example for lack of
descriptors, is retried.
"""

import logging
from collections.abc import Sequence
from typing import Final

import attrs

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.log.deadlines import Deadlines
from kwire.log.disk import Disk
from kwire.log.disk_health import RETRY_SECONDS
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread

logger = logging.getLogger(__name__)

PATHS_MAX: Final = 32
"""The number of files removed by one call in a thread."""


@attrs.frozen(eq=False, repr=False)
class Removal:
    """Paths to remove; a path without a slash is a whole directory."""

    disk: Disk
    paths: Sequence[str]
    segments: Sequence[Segment]
    """The segments that the paths belong to, if they were open."""

    @property
    def is_directory(self) -> bool:
        return any("/" not in path for path in self.paths)

    def run(self) -> None:
        """Remove the paths, in a thread."""
        for path in self.paths:
            if "/" in path:
                self.disk.remove(path)
            else:
                self.disk.remove_tree(path)


@attrs.define(eq=False, repr=False)
class Removals:
    """The removals of one log directory; the next start completes interrupted ones."""

    clock: Clock
    in_thread: InThread
    _timers: Deadlines[Removal] = attrs.field(init=False, factory=Deadlines)

    def __len__(self) -> int:
        return len(self._timers)

    def add(
        self, disk: Disk, paths: Sequence[str], delay_ms: int, segments: Sequence[Segment] = ()
    ) -> None:
        """Remove paths after a delay."""
        due = self.clock.now() + delay_ms / 1000
        for start in range(0, len(paths), PATHS_MAX):
            last = start + PATHS_MAX >= len(paths)
            removal = Removal(disk, paths[start : start + PATHS_MAX], segments if last else ())
            self._timers.arm(removal, due)

    async def run(self) -> None:
        """Remove files when they are due, until cancelled.

        The mark in a directory's name is synced before its files are removed: a partition that
        reappears after a power loss, under its old name and without its topic id, could be taken
        for a partition of another topic.
        """
        while True:
            # A separate function, whose frame does not keep the segments of deleted logs alive.
            await self._remove_due()

    async def _remove_due(self) -> None:
        synced: set[Disk] = set()
        for removal in await self._timers.wait(self.clock):
            disk = removal.disk
            try:
                if removal.is_directory and disk not in synced:
                    await self.in_thread(disk, disk.sync_directory)
                    synced.add(disk)
                await self.in_thread(disk, removal.run)
            except OSError as error:
                logger.error("cannot remove paths=%s error=%s", removal.paths, error)
                if disk.failed is None:
                    self._timers.arm(removal, self.clock.now() + RETRY_SECONDS)
            slices = Slices(self.clock.now)
            for segment in removal.segments:  # A search may have reopened the files.
                segment.file.close()
                await slices.pause()
