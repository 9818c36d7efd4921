"""Decides what an operating system error means for a log directory; only this module does.

Lack of descriptors and lack of space are temporary: the call fails, the directory stays online. A
name that does not exist, or that something else has, concerns only that name. Every other error,
and every failed fsync, whatever its reason, takes the directory offline until the broker is
restarted: the content of the page cache is then unknown, so no later sync proves that the data is
on disk. The directory then gets a mark for the next start (:mod:`kwire.log.directories.rewriting`).
"""

import enum
import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

RESERVE: Final = ".kwire_reserve"
RESERVE_BYTES: Final = 4 << 20
FAILED_SYNC: Final = ".kwire_failed_sync"
"""The mark that an fsync has failed: the next start rewrites data that may be only in the cache."""
RETRY_SECONDS: Final = 1.0
"""The delay before a failed flush or write is retried in a directory that is still online."""


class DiskErrorKind(enum.Enum):
    """The kind of an operating system error, by its effect on the log directory."""

    NO_DESCRIPTORS = enum.auto()
    """The process or the system has too many files open."""
    NO_ROOM = enum.auto()
    """The volume or the user's quota is exhausted."""
    WRONG_NAME = enum.auto()
    """The name has no file, or one that the call does not fit, perhaps of another program."""
    BROKEN = enum.auto()
    """The directory can no longer be relied on."""


_KINDS: Final = {
    errno.EMFILE: DiskErrorKind.NO_DESCRIPTORS,
    errno.ENFILE: DiskErrorKind.NO_DESCRIPTORS,
    errno.ENOSPC: DiskErrorKind.NO_ROOM,
    getattr(errno, "EDQUOT", errno.ENOSPC): DiskErrorKind.NO_ROOM,
    errno.ENOENT: DiskErrorKind.WRONG_NAME,
    errno.EEXIST: DiskErrorKind.WRONG_NAME,
    errno.ENOTDIR: DiskErrorKind.WRONG_NAME,
    errno.EISDIR: DiskErrorKind.WRONG_NAME,
    errno.ENOTEMPTY: DiskErrorKind.WRONG_NAME,
    errno.ENAMETOOLONG: DiskErrorKind.WRONG_NAME,
}
_TEMPORARY: Final = frozenset({DiskErrorKind.NO_DESCRIPTORS, DiskErrorKind.NO_ROOM})
_DISK_ERRORS: Final = frozenset(
    {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EIO, errno.EROFS, errno.EACCES}
)


def classify(error: OSError) -> DiskErrorKind:
    """Return the kind of an error; after a failed fsync, it is always a broken directory."""
    return _KINDS.get(error.errno or 0, DiskErrorKind.BROKEN)


def is_of_the_machine(error: OSError) -> bool:
    """Return whether an error comes from the disk or a limit of open files, and not from kwire."""
    return error.errno in _DISK_ERRORS or classify(error) is DiskErrorKind.NO_DESCRIPTORS


def lacks_descriptors(error: BaseException) -> bool:
    """Return whether an error, or its cause, means that too many files are open."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and classify(cause) is DiskErrorKind.NO_DESCRIPTORS


def is_temporary(error: BaseException) -> bool:
    """Return whether an error, or its cause, means a lack of space or of descriptors."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and classify(cause) in _TEMPORARY


@contextmanager
def ignore_no_room() -> Iterator[None]:
    """Suppress an error inside the context if it means that the volume is full."""
    try:
        yield
    except OSError as error:
        if classify(error) is not DiskErrorKind.NO_ROOM:
            raise


class DiskHealth:
    """The health of a log directory; the base of the real disk and of the simulated one.

    A directory reserves :data:`RESERVE_BYTES` of its volume in a file. The first call that finds
    the volume full releases this space, for the metadata log, checkpoints and deletions. After
    that, records are not appended until the reserve can be allocated again with as much room left
    over.
    """

    failed: OSError | None = None
    """The error that broke the directory."""
    full: bool = False
    """True if the reserve was released; :meth:`has_room` checks whether there is room again."""

    def check(self) -> None:
        """Raise OSError if this directory has failed."""
        if self.failed is not None:
            raise OSError(self.failed.errno, f"{self} is offline: {self.failed}")

    def judge(self, error: OSError, *, by_sync: bool = False) -> None:
        """Mark the directory as failed or full if ``error`` means that.

        ``by_sync``: the error came from an fsync, after which the directory always counts as
        failed.
        """
        kind = classify(error)
        if by_sync:
            self.mark_failed_sync()
        if by_sync or kind is DiskErrorKind.BROKEN:
            self.fail(error)
        elif kind is DiskErrorKind.NO_ROOM:
            self._give_back(str(error))

    def fail(self, error: OSError) -> None:
        """Mark the directory as failed, after an error in a change that a start must complete."""
        self.failed = self.failed or error

    def keep_room(self) -> None:
        """Allocate the reserve when the directory is opened."""
        if not self.take_reserve(RESERVE_BYTES):
            self._give_back(f"less than {RESERVE_BYTES} bytes are free")

    def has_room(self) -> bool:
        """Return whether records may be appended.

        A full directory is checked for room again, which costs little.
        """
        if self.full and self.take_reserve(2 * RESERVE_BYTES):
            self.full = False
            logger.warning("room for records again directory=%s", self)
        return not self.full

    def take_reserve(self, free: int) -> bool:
        """Allocate the reserve if ``free`` bytes are available; return whether it is allocated.

        A complete reserve left by a killed process is kept unchanged.
        """
        raise NotImplementedError

    def drop_reserve(self) -> None:
        """Release the reserve, if it is allocated."""
        raise NotImplementedError

    def mark_failed_sync(self) -> None:
        """Create the mark, if the disk allows it; the mark is not synced.

        A power loss may remove it, but then it also empties the page cache that the mark warns of.
        """
        raise NotImplementedError

    def _give_back(self, reason: str) -> None:
        if self.full:
            return
        self.full = True
        self.drop_reserve()
        logger.error(
            "no room for records directory=%s error=%s; "
            "delete topics or records, shorten their retention, or enlarge the volume",
            self,
            reason,
        )
