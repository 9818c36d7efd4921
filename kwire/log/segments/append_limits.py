"""The limits within which a leader may append to a segment without any further checks.

Rules: the limits are computed once for many batches. They may be too strict but never too wide: a
batch outside them takes the general path (:meth:`PartitionLog.append_leader`), which decides. They
are valid for one settings object, which the caller compares. Appends do not invalidate them; any
other change of the segment, or a queued write for it, sets ``Segment.limits`` to None. A flush only
raises the recovery point, so it makes ``end_offset`` stricter than necessary.
"""

from typing import TYPE_CHECKING, NamedTuple

from kwire.log.config import LogConfig

if TYPE_CHECKING:
    from kwire.log.segments.segment import Segment


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


def append_limits(
    segment: "Segment", config: LogConfig, recovery_point: int
) -> AppendLimits | None:
    """Return the limits for the next batches of a segment; None if all need the general path.

    There are no limits for an empty segment, for a segment whose first batch has a missing or
    unknown timestamp, and for topics whose timestamps the broker sets.
    """
    first_timestamp = segment.first_timestamp
    if first_timestamp < 0 or not segment.size or config.log_append_time:
        return None
    entry_count = segment.indexes.free_entries(config.segment_index_bytes)
    return AppendLimits(
        config,
        min(
            config.segment_bytes,
            segment.space.end,
            segment.size + entry_count * config.index_interval_bytes,
        ),
        min(segment.last_offset_max + 1, recovery_point + config.flush_messages - 1),
        first_timestamp + config.max_segment_ms - segment.roll_jitter_ms,
        config.timestamp_after_max_ms,
        config.timestamp_before_max_ms,
    )
