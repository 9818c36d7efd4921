"""The files that one node keeps open, shared by all its log directories.

Rules: the least recently used file is closed when too many are open. A pinned file is in use and
not counted. Only the event loop's thread closes files to make room: a worker thread could close a
descriptor, and the system could reuse its number, between the loop's decision to write to it and
the write.
"""

from collections import OrderedDict
from threading import get_ident
from typing import Final, Protocol

FILES_MIN: Final = 16
FILES_MAX: Final = 16_384


class Closable(Protocol):
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
        self._recent: OrderedDict[Closable, None] = OrderedDict()
        self._thread = get_ident()

    def __len__(self) -> int:
        return len(self._recent)

    def claim(self) -> None:
        """Make the calling thread the one that closes files."""
        self._thread = get_ident()

    def on_used(self, file: Closable) -> None:
        """Note that an open file was used; files opened by another thread are not tracked."""
        if get_ident() != self._thread:
            return
        recent = self._recent
        if file in recent:
            recent.move_to_end(file)
            return
        recent[file] = None
        self._close_until(self.limit)

    def forget(self, file: Closable) -> None:
        """Note that a file was closed or pinned."""
        self._recent.pop(file, None)

    def shed(self) -> bool:
        """Close the less recently used half when the process is out of descriptors.

        Return whether any was closed.
        """
        if get_ident() != self._thread or not self._recent:
            return False
        self._close_until(len(self._recent) // 2)
        return True

    def _close_until(self, count: int) -> None:
        while len(self._recent) > count:
            next(iter(self._recent)).close()
