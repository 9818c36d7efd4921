"""The description of a cleaning pass, and its results.

Rule: all values in this module can be pickled, because a pass may run in another process.
"""

from collections.abc import Mapping

import attrs

from kwire.log.config import LogConfig
from kwire.log.formats.txn_index import AbortedTxn

ActiveProducers = Mapping[int, tuple[int, int | None]]
"""The epoch and the last data offset of each active producer, by producer id.

The offset is None if the producer's only remaining batch is a control batch.
"""


class CleaningFailed(Exception):
    """A pass cannot continue because of the segments' content, such as a damaged batch.

    The segments are unchanged, and another attempt would fail too. Errors of the operating system
    are raised as :class:`OSError` instead.
    """


@attrs.frozen(repr=False)
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


@attrs.frozen(kw_only=True, repr=False)
class CleaningJob:
    """One pass over one log."""

    directory: str
    """The partition's directory, relative to the disk's root."""
    segments: tuple[SourceSegment, ...]
    """All closed segments in order, from the log's first to the last cleanable one."""
    next_base: int
    """The base offset of the segment after the last of :attr:`segments`."""
    first_dirty: int
    """The offset from which keys are mapped."""
    end_offset: int
    """The first offset that must not be cleaned or mapped; a segment's base offset."""
    now_ms: int
    """The wall clock at the start of the pass."""
    later_aborted: tuple[AbortedTxn, ...]
    """The aborted transactions that begin below :attr:`next_base` and end at or above it.

    Their index entries are in segments that the pass does not read. They are in the order of their
    markers.
    """
    config: LogConfig
    memory_bytes: int
    """The size of the offset map (``log.cleaner.dedupe.buffer.size`` divided by the threads)."""
    load_factor: float
    """The largest share of the map's slots that may be in use
    (``log.cleaner.io.buffer.load.factor``)."""
    buffer_bytes: int
    """The size of each read and write (half of a thread's ``log.cleaner.io.buffer.size``)."""
    active_producers: ActiveProducers
    bytes_per_second: float
    """The largest number of bytes read and written per second; infinite without a limit."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NewSegment:
    """The files of a segment that will replace others, all written as ``.cleaned`` and synced."""

    base_offset: int
    size: int
    """Bytes of the new log file; 0 if no record of the segments is kept."""
    suffixes: tuple[str, ...]
    """The suffixes of the written files, which are named base offset, suffix, ``.cleaned``."""
    largest_timestamp_ms: int
    """The largest timestamp of the new segment's records; -1 if no record has one."""
    largest_timestamp_offset: int
    """The last offset of the first batch with that timestamp; without one, the base offset."""
    modified_ms: int
    """The modification time for the new log file: that of the last source segment."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CleanedGroup(NewSegment):
    """The segment that replaces a group of segments, with the base offset of the first of them.

    A source that an old release of Kafka wrote may span more offsets than the indexes can hold; it
    is replaced by several segments.
    """

    later: tuple[NewSegment, ...] = ()
    """The segments after it, where the indexes of a single segment could not hold the offsets."""
    sources: tuple[int, ...]
    """The base offsets of the segments that are replaced."""
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    keyless_dropped: int
    """The number of dropped records without a key, which a compacted log does not keep."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CleaningSummary:
    """The result of a whole pass."""

    clean_end: int
    """The new first dirty offset: all keys below it were mapped."""
    map_bytes_read: int
    """Bytes that were read to fill the offset map."""
    bytes_read: int
    """Bytes of the segments that were rewritten."""
    bytes_written: int
    records_read: int
    records_kept: int
    keyless_dropped: int
    map_utilization: float
    """The share of the offset map's slots that were in use at the end, 0 to 1."""
