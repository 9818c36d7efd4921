"""The files that one node keeps open, shared by all its log directories.

Rules: the least recently used file is closed when too many are open; one with unsynced data only if
there is no other, because the system reports a write that fails to the descriptors that are open
then, and to a later one only while it remembers the file. A pinned file is in use and not counted.
Only the event loop's thread closes files to make room: a worker thread could close a
descriptor, and the system could reuse its number, between the loop's decision to write to it and
the write.
"""

from collections import OrderedDict
from threading import get_ident
from typing import Final, Protocol

FILES_MIN: Final = 16
FILES_MAX: Final = 16_384


class Closable(Protocol):
    is_unsynced: bool
    """Whether the file has changed since its last sync."""

    def close(self) -> None: ...


def files_limit(descriptors: int) -> int:
    """Return the number of the process's descriptors that cached files may take.

    The rest is for connections, for files that are being read or written, and for threads.
    """
    return max(FILES_MIN, min(descriptors // 4, FILES_MAX))


class Descriptors:
    """Open files that are not pinned, least recently used first."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self._synced: OrderedDict[Closable, None] = OrderedDict()
        self._unsynced: OrderedDict[Closable, None] = OrderedDict()
        self._thread = get_ident()

    def __len__(self) -> int:
        return len(self._synced) + len(self._unsynced)

    def claim(self) -> None:
        """Make the calling thread the one that closes files."""
        self._thread = get_ident()

    def on_used(self, file: Closable) -> None:
        """Note that an open file was used; files opened by another thread are not tracked."""
        if get_ident() != self._thread:
            return
        ours, others = self._synced, self._unsynced
        if file.is_unsynced:
            ours, others = others, ours
        if file in ours:
            ours.move_to_end(file)
            return
        ours[file] = None
        if file in others:
            del others[file]
        else:
            self._close_until(self.limit, file)

    def forget(self, file: Closable) -> None:
        """Note that a file was closed or pinned."""
        self._synced.pop(file, None)
        self._unsynced.pop(file, None)

    def shed(self) -> bool:
        """Close half of the files when the process is out of descriptors; return whether any was.

        They are the less recently used ones, those with unsynced data last.
        """
        if get_ident() != self._thread or not len(self):
            return False
        self._close_until(len(self) // 2)
        return True

    def _close_until(self, count: int, used: Closable | None = None) -> None:
        """Close files until ``count`` are open, but not the one that is being used."""
        while len(self) > count:
            file = next(iter(self._synced), used)
            (next(iter(self._unsynced)) if file is None or file is used else file).close()
