"""The disk blocks that are reserved for a segment's log file before batches need them.

An append into unreserved blocks takes several times as long. Small files reserve no blocks, because
reserved blocks of thousands of idle partitions would fill the disk.
"""

from typing import Final

from kwire.log.config import LogConfig
from kwire.log.disk import File

ALLOCATE_FROM: Final = 1 << 20
"""The smallest file size for which blocks are reserved."""
ALLOCATE_STEP: Final = 16 << 20


class ReservedSpace:
    """The reserved blocks of one log file."""

    __slots__ = ("end", "is_trimmed")

    def __init__(self) -> None:
        self.end = ALLOCATE_FROM
        """The position up to which the log can be written without calling :meth:`extend`."""
        self.is_trimmed = True
        """True while no blocks are reserved after the last batch."""

    def extend(self, file: File, position: int, size: int, config: LogConfig) -> None:
        """Reserve blocks for ``size`` bytes at ``position``, and for some later appends."""
        end = position + size
        if config.preallocate:
            reserved_end = max(config.segment_bytes, end)
        else:
            step_end = position + min(ALLOCATE_STEP, position)
            reserved_end = max(min(step_end, config.segment_bytes), end)
        if reserved_end > ALLOCATE_FROM or config.preallocate:
            file.allocate(position, reserved_end - position)
            self.end = reserved_end
            self.is_trimmed = False

    def reset(self) -> None:
        """Record that the file was truncated, which released the reserved blocks."""
        self.end = ALLOCATE_FROM
        self.is_trimmed = True
