"""The lock that lets one broker use a log directory; a broker of Apache Kafka respects it too."""

import errno
import os
import struct
import sys
from contextlib import suppress
from typing import IO, Final

_LOCKED: Final = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
"""Error numbers that mean that another process holds the lock; others mean that locks do not work.
"""
_FLOCK: Final = "hhqqi"
"""The type, origin, start, length and process of a lock in Linux's ``struct flock``."""


class AlreadyLocked(OSError):
    """Another broker is using this directory."""


class DirectoryLock:
    """Kafka's lock: a POSIX record lock, plus ``flock`` to separate two brokers in one process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _open_locked(path)
        while not _is_at(path, self._file):  # The file was removed before it was locked.
            self._file.close()
            self._file = _open_locked(path)

    def release(self) -> None:
        """Release the lock and remove its file, which a killed process would leave behind."""
        with suppress(OSError):
            os.unlink(self._path)
        self._file.close()


def is_locked(path: str) -> bool:
    """Return whether another process holds this lock, without taking it.

    False where the system does not tell.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError:
        return False
    with file, suppress(OSError):
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, query)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    return False


def _open_locked(path: str) -> IO[bytes]:
    file = open(path, "ab")  # noqa: SIM115
    try:
        _lock(file.fileno())
    except OSError as error:
        file.close()
        if error.errno not in _LOCKED:
            raise
        raise AlreadyLocked(error.errno, f"{path} is locked by another broker") from error
    return file


def _is_at(path: str, file: IO[bytes]) -> bool:
    """Return whether a name still refers to a file.

    A broker that stops removes the file that it has locked. Another one may have opened that file
    before, and its lock on the removed file would not keep out a third broker.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _lock(fd: int) -> None:
    import fcntl  # Commands that lock nothing also run on Windows.

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
