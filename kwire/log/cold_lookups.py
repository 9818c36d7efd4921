"""Lookups that would block on the disk: a thread first reads the data into the page cache.

A lookup on the event loop reads only the page cache, and raises :class:`WouldWait` if a page is not
cached. A thread then performs the same reads and discards most of the data. Finally, the lookup is
repeated on the loop, with reads that may block but normally find every page cached. The log may
change in between, because no result of the first lookup is used.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from kwire.log.disk import Disk, File
from kwire.records.header import Buffer

Job = Callable[[], None]
ReadAt = Callable[[int, int], Buffer]
"""A function that reads from a file: its arguments are the position and the largest size."""


def _read_nothing() -> None: ...


class WouldWait(Exception):
    """A lookup needs data that is not in the page cache."""

    disk: Disk

    def __init__(self) -> None:
        super().__init__()
        self.job: Job = _read_nothing
        """The reads to make in a thread of the disk before the lookup is repeated."""


def reader(file: File, *, wait: bool) -> ReadAt:
    """Return a lookup's read function; if ``wait`` is false, it raises :class:`WouldWait`."""
    if wait:
        return file.read

    def read(position: int, size: int) -> Buffer:
        data = file.read_cached(position, size)
        if data is None:
            raise WouldWait
        return data

    return read


def run_all(jobs: Sequence[Job]) -> None:
    """Run jobs in a thread, ignoring bad or missing files: the lookup on the loop reports them."""
    for job in jobs:
        with suppress(OSError, ValueError, struct.error):
            job()
