"""The files that one node keeps open, shared by all its log directories.

Rules: if too many files are open, the least recently used file is closed. A file with unsynced data
is closed only as a last resort: the system reports a failed write to the descriptors that are open
at that time, and to later descriptors only while it remembers the file. A pinned file is in use and
is not counted. Only the event loop's thread closes files to make room. A worker thread could close
a descriptor, and the system could reuse its number, after the loop has decided to write to it and
before the write.
"""

from collections import OrderedDict
from contextlib import suppress
from threading import get_ident
from typing import Final, Protocol

FILES_MIN: Final = 16
FILES_MAX: Final = 16_384
DESCRIPTORS_MAX: Final = 1 << 20


class Closable(Protocol):
    is_unsynced: bool
    """True if the file has changed since its last sync."""

    def close(self) -> None: ...


def files_limit(descriptors: int) -> int:
    """Return how many of the process's ``descriptors`` cached files may use.

    The rest is for connections, for files that are being read or written, and for threads.
    """
    return max(FILES_MIN, min(descriptors // 4, FILES_MAX))


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the new soft limit."""
    import resource  # Commands that keep no files open also run on Windows.

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    for limit in (most, 1 << 16, 10_240):  # Some systems reject the hard limit's value.
        if soft < limit <= most:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return limit
    return soft


class Descriptors:
    """Open files that are not pinned, least recently used first."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self._synced: OrderedDict[Closable, None] = OrderedDict()
        self.unsynced: OrderedDict[Closable, None] = OrderedDict()
        """The files with unsynced data; a file that is written again moves to the end."""
        self._thread = get_ident()

    def __len__(self) -> int:
        return len(self._synced) + len(self.unsynced)

    def claim(self) -> None:
        """Make the calling thread the only one that closes files."""
        self._thread = get_ident()

    def on_used(self, file: Closable) -> None:
        """Record that an open file was used; files opened by another thread are not tracked."""
        if get_ident() != self._thread:
            return
        files, others = self.unsynced, self._synced
        if not file.is_unsynced:
            files, others = others, files
        if file in files:
            files.move_to_end(file)
            return
        others.pop(file, None)
        files[file] = None
        if len(files) + len(others) > self.limit:
            self._close_until(self.limit, file)

    def forget(self, file: Closable) -> None:
        """Stop tracking a file that was closed or pinned."""
        if file in self.unsynced:
            self.unsynced.pop(file, None)
        else:
            self._synced.pop(file, None)

    def shed(self) -> bool:
        """Close half of the files if the process is out of descriptors; return True if any was."""
        if get_ident() != self._thread or not len(self):
            return False
        self._close_until(len(self) // 2)
        return True

    def _close_until(self, count: int, used: Closable | None = None) -> None:
        """Close files until ``count`` are open, but keep the file that is being used."""
        while len(self) > count:
            file = next(iter(self._synced), used)
            (next(iter(self.unsynced)) if file is None or file is used else file).close()
