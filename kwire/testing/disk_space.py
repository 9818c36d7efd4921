"""Log directories of a test broker that a test can make full.

Rule: the node itself decides what a full volume means (:mod:`kwire.log.disk_health`). It gets disks
that report a full volume, so nothing has to fill the machine's memory. The space of the reserve,
from which a full node writes its metadata, is real.
"""

import errno
import os

import attrs

from kwire.log.descriptors import Descriptors
from kwire.log.disk import RealDisk, RealDisks, Space


@attrs.define(eq=False, repr=False)
class DiskSpace:
    """The space in the log directories of one node, whether or not the node is running."""

    is_full: bool = False
    _disks: "list[_LimitedDisk]" = attrs.field(factory=list)
    """The directories that the running node uses."""

    def disks(self) -> RealDisks:
        """Return the directories for a start of the node, which may find them full."""
        self._disks.clear()
        return _LimitedDisks(self)

    def add(self, disk: "_LimitedDisk") -> None:
        """Include a directory that the node begins to use."""
        self._disks.append(disk)

    def fill(self) -> None:
        """Leave no space, as when a write finds the volume full."""
        self.is_full = True
        for disk in self._disks:
            disk.judge(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def free(self) -> None:
        """Leave as much space as the volume has; a node notices with the next append."""
        self.is_full = False


class _LimitedDisks(RealDisks):
    """The log directories of one start of a node."""

    def __init__(self, space: DiskSpace) -> None:
        super().__init__()
        self._space = space

    def open(self, path: str) -> RealDisk:
        return _LimitedDisk(path, self._space, self._descriptors)


class _LimitedDisk(RealDisk):
    """A log directory whose volume is full while the test wants it."""

    def __init__(self, root: str, space: DiskSpace, descriptors: Descriptors) -> None:
        super().__init__(root, descriptors=descriptors)
        self._space = space

    def keep_room(self) -> None:
        self._space.add(self)
        super().keep_room()

    def take_reserve(self, free: int) -> bool:
        return not self._space.is_full and super().take_reserve(free)

    def space(self) -> Space:
        space = super().space()
        return space._replace(usable=0) if self._space.is_full else space
