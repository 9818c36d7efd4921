"""The choice of segments to delete: by size, by age, and below the log start.

Pure. Rules: only whole segments are deleted, oldest first, and none that reaches past the high
watermark, or past what remote storage has copied. If the active segment is too old, or if nothing
may stay (``retention.bytes=0``), it is deleted after a roll. Future timestamps are taken literally:
a segment with one stays until it is old enough or the log is too large, and the segments after it
stay too.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

import attrs

from kwire.log.config import LogConfig
from kwire.log.segments.segment import Segment


@attrs.frozen(repr=False)
class Deletion:
    """The number of segments to delete, oldest first; with ``roll``, after rolling the log."""

    count: int
    roll: bool = False


NOTHING = Deletion(0)


def plan(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start: int,
    high_watermark: int,
    copied_end: int | None = None,
    now_ms: int,
) -> Deletion:
    """Return the deletion that is due now.

    ``copied_end``: remote storage has the records below it; None while nothing is remote.
    """
    count = _below(segments, log_start)
    if config.cleanup_delete:
        limit = high_watermark if copied_end is None else min(high_watermark, copied_end)
        free = _below(segments, limit)
        due = max(
            _too_much(segments, config.retention_bytes),
            _too_old(segments, config.retention_ms, now_ms),
        )
        count = max(count, min(free, due))
        if count == len(segments) - 1 and due == len(segments) and _may_roll(segments[-1], limit):
            return Deletion(len(segments), roll=True)
    return Deletion(count)


def _below(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of closed segments whose records all lie below ``offset``."""
    return max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)


def _too_much(segments: Sequence[Segment], retention_bytes: int) -> int:
    """Return how many segments can be deleted, oldest first, to leave ``retention_bytes``."""
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    for count, segment in enumerate(segments):
        excess -= segment.size
        if excess < 0:
            return count
    return len(segments)


def _too_old(segments: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    """Return the number of segments before the first one with a record within ``retention_ms``."""
    if retention_ms < 0:
        return 0
    last = len(segments) - 1
    for count, segment in enumerate(segments):
        if not segment.size and count == last:
            return count  # A closed segment may be empty after compaction.
        youngest = segment.max_timestamp
        if youngest < 0:
            youngest = segment.largest_timestamp()
            if youngest < 0:
                youngest = segment.modified_ms
        if now_ms - youngest <= retention_ms:
            return count
    return len(segments)


def _may_roll(active: Segment, limit: int) -> bool:
    """Return whether the active segment has records, all of them written and below ``limit``."""
    last = 0
    if active.written < active.size:  # The high watermark is below the queued batches.
        return False
    for _, header in active.scan(active.floor(1 << 62)[0]):
        last = header.next_offset
    return 0 < last <= limit
