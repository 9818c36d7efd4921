"""Chooses the compacted log to clean next, and which of its segments may be cleaned.

Pure: the arguments are facts about a log's segments, and the time. Rules: the dirty part of a log
starts at the end of its last pass. A pass cleans whole segments, but not the active segment, nor a
segment with records above the last stable offset or younger than ``min.compaction.lag.ms``. A log
is due when the cleanable share of its bytes exceeds ``min.cleanable.dirty.ratio``, or when
``max.compaction.lag.ms`` has passed since its first dirty record. Sizes are counted as in Apache
Kafka, so that both choose the same log.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import attrs

from kwire.log.config import LogConfig

NEVER_MS: Final = 1 << 62
"""A time that never comes."""
K = TypeVar("K")


class SegmentFacts(NamedTuple):
    """The facts about one segment; a log's last segment is the active one."""

    base_offset: int
    size: int
    """Bytes of the log file."""
    largest_timestamp_ms: int = -1
    """The largest timestamp of the segment's records or, if no record has one, the time at which
    the file was last modified; used only if ``min.compaction.lag.ms`` is set."""
    first_timestamp_ms: int = -1
    """The largest timestamp of the first batch, -1 if unknown; used only if
    ``max.compaction.lag.ms`` is set."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogFacts:
    """The facts about one log."""

    segments: Sequence[SegmentFacts]
    local_start: int
    end_offset: int
    last_stable_offset: int
    clean_end: int | None
    """The end of the part that passes have cleaned, from the checkpoint; None if it has no
    entry."""
    config: LogConfig


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Assessment:
    """The range and size of the pass over a log that would be possible at one moment."""

    first_dirty: int
    """The offset from which keys are mapped."""
    end_offset: int
    """The end of the range to clean, exclusive; a segment's base offset."""
    clean_bytes: int
    """Bytes of the segments whose base offset is below :attr:`first_dirty`."""
    cleanable_bytes: int
    """Bytes of the segments from the one that contains :attr:`first_dirty` up to
    :attr:`end_offset`."""
    delay_ms: int
    """By how much ``max.compaction.lag.ms`` is exceeded; 0 if it is not."""
    is_due: bool
    retry_ms: int
    """The wall-clock time at which the assessment changes by itself; :data:`NEVER_MS` if it does
    not.
    """
    is_blocked: bool
    """True while only the last stable offset keeps closed segments from being cleaned."""

    @property
    def cleanable_ratio(self) -> float:
        """The share of bytes that a pass would clean; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def first_dirty_offset(clean_end: int | None, local_start: int, end_offset: int) -> int:
    """Return the offset at which the dirty part starts.

    A checkpoint outside the local segments is ignored: then everything is dirty.
    """
    if clean_end is None or not local_start <= clean_end <= end_offset:
        return local_start
    return clean_end


def dirty_segments(segments: Sequence[K], bases: Sequence[int], first_dirty: int) -> Sequence[K]:
    """Return the closed segments that may hold offsets from ``first_dirty`` onwards.

    ``bases`` are the base offsets of ``segments``.
    """
    return segments[max(bisect_right(bases, first_dirty) - 1, 0) : -1]


def assess(log: LogFacts, now_ms: int) -> Assessment:
    """Return what a pass over a log would clean now, and when that may change."""
    segments, config = log.segments, log.config
    bases = [segment.base_offset for segment in segments]
    first_dirty = first_dirty_offset(log.clean_end, log.local_start, log.end_offset)
    dirty = dirty_segments(segments, bases, first_dirty)
    active_base = bases[-1]
    lag_ms = config.min_compaction_lag_ms
    young = next((s for s in dirty if s.largest_timestamp_ms > now_ms - lag_ms), None)
    limit = active_base if young is None or lag_ms <= 0 else young.base_offset
    is_blocked = log.last_stable_offset < limit
    limit = max(min(limit, log.last_stable_offset), first_dirty)
    # A pass ends at a segment's base offset.
    end_offset = bases[max(bisect_right(bases, limit) - 1, 0)]
    clean_bytes = sum(s.size for s in segments[: bisect_left(bases, first_dirty)])
    first = max(bisect_right(bases, min(first_dirty, end_offset)) - 1, 0)
    cleanable_bytes = sum(s.size for s in segments[first : bisect_left(bases, end_offset)])
    if end_offset <= first_dirty:
        cleanable_bytes = 0
    delay_ms, overdue_ms = _delay(dirty, config.max_compaction_lag_ms, now_ms)
    total = clean_bytes + cleanable_bytes
    is_due = total > 0 and (
        (delay_ms > 0 and cleanable_bytes > 0)
        or cleanable_bytes / total > config.min_cleanable_dirty_ratio
    )
    retry_ms = overdue_ms
    if young is not None and lag_ms > 0:
        retry_ms = min(retry_ms, young.largest_timestamp_ms + lag_ms)
    return Assessment(
        first_dirty=first_dirty,
        end_offset=end_offset,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        delay_ms=delay_ms,
        is_due=is_due,
        retry_ms=retry_ms,
        is_blocked=is_blocked,
    )


def _delay(dirty: Iterable[SegmentFacts], max_lag_ms: int, now_ms: int) -> tuple[int, int]:
    """Return by how much the oldest dirty segment exceeds the lag, and when it will exceed it.

    The second value is :data:`NEVER_MS` if the segment already exceeds the lag, or if no segment
    has a timestamp.
    """
    times = (segment.first_timestamp_ms for segment in dirty)
    earliest = min((time for time in times if time > 0), default=None)
    if earliest is None or max_lag_ms >= NEVER_MS:
        return 0, NEVER_MS
    delay_ms = now_ms - max_lag_ms - earliest
    return (delay_ms, NEVER_MS) if delay_ms > 0 else (0, earliest + max_lag_ms + 1)
