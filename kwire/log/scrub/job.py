"""The description of one segment's check, and its result.

Rule: this file contains only values that can be pickled, because a check may run in another
process.
"""

import attrs

from kwire.log.inspection.index_check import WrongEntry
from kwire.log.segments.damage import DamagedRange


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SegmentJob:
    """The check of one closed segment."""

    directory: str
    """The partition's directory, relative to the disk's root."""
    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    size: int
    """Bytes of the log file."""
    epochs: tuple[tuple[int, int], ...]
    """The log's leader epochs with their start offsets, oldest first, that concern the segment."""
    bytes_per_second: float
    """The largest number of bytes read per second; infinite without a limit."""
    index_interval: int | None = None
    """The bytes between two entries of the offset index; None if no index files are compared."""


@attrs.frozen(kw_only=True, repr=False)
class SegmentReport:
    """The result of one segment's check."""

    size: int
    """The number of bytes read."""
    damage: tuple[DamagedRange, ...]
    wrong: tuple[WrongEntry, ...] = ()
    """The first wrong entry of each index file; none in a segment with damaged batches."""
