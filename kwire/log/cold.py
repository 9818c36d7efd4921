"""Lookups that would wait for the disk: how they are noticed, and what a thread does for them.

A lookup on the loop reads what is in the page cache and raises :class:`WouldWait` where something
is not. A thread makes the same reads and throws away what it finds; then the lookup is made again
on the loop, with reads that may wait and find everything in the page cache. So the log may change
meanwhile: nothing of an old answer is used.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from kwire.log.disk import Disk, File
from kwire.records.header import Buffer

Job = Callable[[], None]
ReadAt = Callable[[int, int], Buffer]
"""Bytes of a file at a position, up to a size."""


class WouldWait(Exception):
    """A lookup needs what is not in the page cache."""

    disk: Disk
    job: Job
    """What to do in a thread of the disk before the lookup is made again."""


def reader(file: File, *, wait: bool) -> ReadAt:
    """How a lookup reads a file; without ``wait`` it raises :class:`WouldWait`."""
    if wait:
        return file.read

    def read(position: int, size: int) -> Buffer:
        data = file.read_cached(position, size)
        if data is None:
            raise WouldWait
        return data

    return read


def run_all(jobs: Sequence[Job]) -> None:
    """In a thread. What is wrong with a file, or is gone, the lookup on the loop finds again."""
    for job in jobs:
        with suppress(OSError, ValueError, struct.error):
            job()
