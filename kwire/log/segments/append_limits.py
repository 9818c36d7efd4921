"""The limits within which a leader may append to a segment without any further checks.

Rules: the limits are computed once for many batches. They may be too strict but never too wide: a
batch outside them takes the general path (:meth:`PartitionLog.append_leader`), which decides. They
are valid for one settings object, which the caller compares. Appends do not invalidate them; any
other change of the segment, or a queued write for it, sets ``Segment.limits`` to None. A flush only
raises the recovery point, so it makes ``end_offset`` stricter than necessary.
"""

from typing import NamedTuple

from kwire.log.config import LogConfig


class AppendLimits(NamedTuple):
    """The limits of a segment; a batch that exceeds none of them needs only to be written."""

    config: LogConfig
    end_position: int
    """The highest end position of a batch. Up to this position the segment has room, its blocks are
    reserved, and its index entries need neither a new segment nor a move to a file.
    """
    end_offset: int
    """The highest end offset of a batch. Up to this offset the indexes can hold the offsets, and
    ``flush.messages`` requires no sync.
    """
    timestamp: int
    """The largest timestamp, beyond which the segment is too old (``segment.ms``)."""
    after_ms: int
    """The time by which a batch may be ahead of the clock (``message.timestamp.after.max.ms``)."""
    before_ms: int
    """The time by which a batch may be behind the clock (``message.timestamp.before.max.ms``)."""
