"""Lookups that would block on the disk: a thread first reads the data into the page cache.

A lookup on the event loop reads only the page cache, and raises :class:`WouldWait` if a page is not
cached. A thread then performs the same reads and discards most of the data. Finally, the lookup is
repeated on the loop, with reads that may block but normally find every page cached. The log may
change in between, because no result of the first lookup is used. Only cached data can show that an
index is wrong, so there is one more lookup between the two that does not wait (:data:`MAY_WAIT`).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from kwire.log.disk import Disk, File
from kwire.records.header import Buffer

Job = Callable[[], None]
Prepare = Callable[[], Job]
ReadAt = Callable[[int, int], Buffer]
"""A function that reads from a file: its arguments are the position and the largest size."""


MAY_WAIT: Final = (False, False, True)
"""Whether each attempt at a lookup may wait for the disk; before the next one, a thread reads.

The second attempt may find with the data of the first one that an index is wrong. The thread then
rebuilds the index, which takes as long as the segment is large.
"""


class LookUp(Protocol):
    """A lookup that raises :class:`WouldWait` instead of waiting if ``wait`` is false."""

    def __call__(self, *, wait: bool) -> object: ...


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


def preparation(look_up: LookUp, make_job: Prepare) -> Iterator[Job]:
    """Yield the jobs to run in threads, one after the other, before a lookup that may wait.

    The first one reads what is not cached; the other rebuilds the indexes if that shows that they
    are wrong. ``make_job`` is called when the lookup has raised :class:`WouldWait`.
    """
    for may_wait in MAY_WAIT[:-1]:
        try:
            look_up(wait=may_wait)
        except WouldWait:
            pass
        else:
            return
        yield make_job()


def run_all(jobs: Sequence[Job]) -> None:
    """Run jobs in a thread, ignoring bad or missing files: the lookup on the loop reports them."""
    for job in jobs:
        with suppress(OSError, ValueError, struct.error):
            job()
