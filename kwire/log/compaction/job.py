"""The description of a cleaning pass, and its results.

Rule of this file: values only, which can be pickled, because a pass may run in another process.
"""

from collections.abc import Mapping

from kwire import attrs
from kwire.log.config import LogConfig
from kwire.log.formats.txn_index import AbortedTxn

ActiveProducers = Mapping[int, tuple[int, int | None]]
"""Epoch and last data offset of each active producer, by producer id.

The offset is None for a producer whose only batch left is a control batch.
"""


class CleaningFailed(Exception):
    """A pass cannot go on because of what the segments hold, such as a damaged batch.

    The segments are unchanged. Another attempt would fail as well; errors of the operating system
    stay :class:`OSError`.
    """


@attrs.frozen
class SourceSegment:
    """A closed segment that a pass may replace; its indexes are on disk."""

    base_offset: int
    size: int
    """Bytes of the log file."""
    largest_timestamp_ms: int
    """The largest timestamp of its records, -1 if no record has one."""
    modified_ms: int
    """The time at which the log file was last modified."""
    has_txn_index: bool


@attrs.frozen(kw_only=True)
class CleaningJob:
    """One pass over one log."""

    directory: str
    """The partition's directory, relative to the disk's root."""
    segments: tuple[SourceSegment, ...]
    """Every closed segment, from the log's first one to the last cleanable one, in order."""
    next_base: int
    """The base offset of the segment behind the last of :attr:`segments`."""
    first_dirty: int
    """The offset from which keys are mapped."""
    end_offset: int
    """The first uncleanable offset, a segment's base offset: nothing from it on is mapped."""
    now_ms: int
    """The wall clock at the start of the pass."""
    later_aborted: tuple[AbortedTxn, ...]
    """The aborted transactions that begin below :attr:`next_base` and end at or above it.

    Their index entries are in segments that the pass does not read, in the order of the markers.
    """
    config: LogConfig
    memory_bytes: int
    """The size of the offset map (``log.cleaner.dedupe.buffer.size`` divided by the threads)."""
    load_factor: float
    """The part of the map's slots that may be in use (``log.cleaner.io.buffer.load.factor``)."""
    buffer_bytes: int
    """The size of a read, and of a write (half of a thread's ``log.cleaner.io.buffer.size``)."""
    active_producers: ActiveProducers
    bytes_per_second: float
    """The limit of bytes read and written; infinite if there is none."""


@attrs.frozen(kw_only=True)
class CleanedGroup:
    """The files that replace a group of segments, all written and synced as ``.cleaned``."""

    base_offset: int
    """The base offset of the new segment, and of the first of :attr:`sources`."""
    sources: tuple[int, ...]
    """The base offsets of the segments that it replaces."""
    size: int
    """Bytes of the new log file; 0 if nothing is left of the segments."""
    suffixes: tuple[str, ...]
    """The files that exist, each named by the base offset, this suffix and ``.cleaned``."""
    largest_timestamp_ms: int
    """The largest timestamp of the new segment's records, -1 if no record has one."""
    largest_timestamp_offset: int
    """The last offset of the first batch with that timestamp, else the base offset."""
    modified_ms: int
    """The time of modification that the new log file gets: that of the last source."""
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    keyless_dropped: int
    """Records without a key, which a compacted log does not keep."""


@attrs.frozen(kw_only=True)
class CleaningSummary:
    """A whole pass."""

    clean_end: int
    """The first dirty offset from now on: all keys below it were mapped."""
    map_bytes_read: int
    """Bytes that were read to fill the offset map."""
    bytes_read: int
    """Bytes of the segments that were rewritten."""
    bytes_written: int
    records_read: int
    records_kept: int
    keyless_dropped: int
    map_utilization: float
    """The part of the offset map's slots in use at the end, 0 to 1."""
