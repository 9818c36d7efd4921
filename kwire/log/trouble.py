"""What an error of the operating system means for a log directory: decided here and nowhere else.

A process out of descriptors and a volume out of room are states that pass: the call fails, the
directory goes on. A missing name concerns that name. Everything else, and every failed fsync
whatever its reason, ends the directory until the broker is started again: what the page cache
holds afterwards is not known, so no later sync may claim that it worked.
"""

import enum
import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

RESERVE: Final = ".kwire_reserve"
RESERVE_BYTES: Final = 4 << 20


class Trouble(enum.Enum):
    """Kinds of errors."""

    NO_DESCRIPTORS = enum.auto()
    """The process or the system has too many files open."""
    NO_ROOM = enum.auto()
    """The volume is full, or the user's share of it."""
    MISSING = enum.auto()
    """There is no such file or directory."""
    BROKEN = enum.auto()
    """The directory cannot be relied on any more."""


_KINDS: Final = {
    errno.EMFILE: Trouble.NO_DESCRIPTORS,
    errno.ENFILE: Trouble.NO_DESCRIPTORS,
    errno.ENOSPC: Trouble.NO_ROOM,
    getattr(errno, "EDQUOT", errno.ENOSPC): Trouble.NO_ROOM,
    errno.ENOENT: Trouble.MISSING,
}


def trouble(error: OSError) -> Trouble:
    """Judge an error of any call but fsync."""
    return _KINDS.get(error.errno or 0, Trouble.BROKEN)


def lacks_descriptors(error: BaseException) -> bool:
    """Whether a call failed, itself or what it was made for, because too many files are open."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and trouble(cause) is Trouble.NO_DESCRIPTORS


@contextmanager
def if_room() -> Iterator[None]:
    """Let what is done inside fail for want of room, and nothing else."""
    try:
        yield
    except OSError as error:
        if trouble(error) is not Trouble.NO_ROOM:
            raise


class Health:
    """Whether a log directory works and has room. Base of the real disk and the simulated one.

    A directory keeps :data:`RESERVE_BYTES` of its volume in a file. The first call that finds no
    room gives them back, for the metadata log, checkpoints and deletions; from then on records are
    not appended until the reserve can be taken again with as much left over.
    """

    failed: OSError | None = None
    """The error that broke the directory."""
    full: bool = False
    """The reserve is given back. Ask :meth:`has_room` whether that is so still."""

    def check(self) -> None:
        """Raise what broke this directory, if something did."""
        if self.failed is not None:
            raise OSError(self.failed.errno, f"{self} is offline: {self.failed}")

    def judge(self, error: OSError, *, by_sync: bool = False) -> None:
        """Take note of an error; ``by_sync``: fsync reported it."""
        kind = trouble(error)
        if by_sync or kind is Trouble.BROKEN:
            self.failed = self.failed or error
        elif kind is Trouble.NO_ROOM:
            self._give_back(str(error))

    def keep_room(self) -> None:
        """Take the reserve when the directory is opened."""
        if not self.take_reserve(RESERVE_BYTES):
            self._give_back(f"less than {RESERVE_BYTES} bytes are free")

    def has_room(self) -> bool:
        """Whether records may be appended. Of a full directory it looks whether there is room
        again, which costs little."""
        if self.full and self.take_reserve(2 * RESERVE_BYTES):
            self.full = False
            log.warning("room for records again directory=%s", self)
        return not self.full

    def take_reserve(self, free: int) -> bool:
        """Allocate the reserve if, beside what is there of it, ``free`` bytes could be had."""
        raise NotImplementedError

    def drop_reserve(self) -> None:
        """Give the reserve back, if it is held."""
        raise NotImplementedError

    def _give_back(self, reason: str) -> None:
        if self.full:
            return
        self.full = True
        self.drop_reserve()
        log.error(
            "no room for records directory=%s error=%s; "
            "delete topics or records, shorten their retention, or enlarge the volume",
            self,
            reason,
        )
