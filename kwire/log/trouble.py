"""What an error of the operating system means for a log directory: decided here and nowhere else.

A process out of descriptors and a volume out of room are states that pass: the call fails, the
directory goes on. A missing name concerns that name. Everything else, and every failed fsync
whatever its reason, ends the directory until the broker is started again: what the page cache
holds afterwards is not known, so no later sync may claim that it worked.
"""

import enum
import errno
from typing import Final


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


class Health:
    """Whether a log directory works. Base of the real disk and of the simulated one."""

    failed: OSError | None = None
    """The error that broke the directory."""

    def check(self) -> None:
        """Raise what broke this directory, if something did."""
        if self.failed is not None:
            raise OSError(self.failed.errno, f"the log directory is offline: {self.failed}")

    def judge(self, error: OSError, *, by_sync: bool = False) -> None:
        """Take note of an error; ``by_sync``: fsync reported it."""
        if by_sync or trouble(error) is Trouble.BROKEN:
            self.failed = self.failed or error
