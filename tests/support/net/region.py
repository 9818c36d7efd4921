"""Regions of plain files, as stand-ins for those of logs."""

import os
from collections.abc import Callable
from typing import BinaryIO

import attrs

from kwire.log.disk import Disk
from simulation.disk import SimDisk


@attrs.define(eq=False)
class File:
    """A plain file, read at positions."""

    opened: BinaryIO

    def fileno(self) -> int:
        return self.opened.fileno()

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.opened.fileno(), size, position)


@attrs.define(eq=False)
class Region:
    """A stand-in for kwire.log's regions over a plain file."""

    file: File
    position: int
    size: int
    has_piece: Callable[[int, int], bool]
    """Whether the page cache has a piece: position, size."""
    disk: Disk = attrs.field(factory=SimDisk)
    closed: bool = False

    def __len__(self) -> int:
        return self.size

    def is_cached(self, position: int, size: int) -> bool:
        return self.has_piece(position, size)

    def close(self) -> None:
        self.closed = True
