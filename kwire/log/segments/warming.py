"""Jobs for threads that read what a lookup needs into the page cache (kwire.log.cold_lookups).

A job opens its own files, because the segment may be cut, removed or closed meanwhile. The data
read is discarded, with two exceptions: aborted transactions, which take a while to summarize, and
rebuilt indexes, which the segment adopts if it has not been cut or closed since.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from kwire.log.cold_lookups import Job, WouldWait, run_all
from kwire.log.formats.txn_index import end_of_listed
from kwire.log.segments import segment as segments
from kwire.log.segments.aborted_index import AbortedLoad
from kwire.log.segments.segment import Segment
from kwire.records.header import HEADER_SIZE


def shadow_of(segment: Segment) -> Segment:
    """Return a copy of the segment with its own files, without the index entries in memory."""
    files = segment.files
    shadow = Segment(files.disk, files.directory, segment.base_offset, segment.written)
    shadow.indexes = segment.indexes.shadow(shadow.files)
    shadow.damage = segment.damage
    return shadow


def _start(segment: Segment, offset: int) -> int | None:
    """Return the position to scan from, or None if finding it needs the disk."""
    if segment.has_indexes:
        with suppress(WouldWait):
            return segment.floor(offset, wait=False)[0]
    return None


def lookups(segment: Segment, *offsets: int) -> Job:
    """Return a job that reads the data :meth:`Segment.locate` needs for these offsets.

    If the segment's indexes are wrong, the job also builds their replacements.
    """
    repair = segment.repair
    shadow = shadow_of(segment)
    starts = [_start(segment, offset) for offset in offsets]

    def read() -> None:
        if repair is not None:
            repair.build()
        try:
            for offset, start in zip(offsets, starts, strict=True):
                _scan_to(shadow, shadow.floor(offset)[0] if start is None else start, offset)
        finally:
            shadow.file.close()

    return read


def _scan_to(shadow: Segment, position: int, offset: int) -> None:
    """Read the headers of the batches from ``position`` to the one that contains ``offset``."""
    for _, header in shadow.scan(position):
        if header.last_offset >= offset:
            return


def headers(segment: Segment, position: int, end: int) -> Job:
    """Return a job that reads the headers of the batches in a range of the file."""
    shadow = shadow_of(segment)

    def read() -> None:
        try:
            for _ in shadow.scan(position, end):
                pass
        finally:
            shadow.file.close()

    return read


def end_before(segment: Segment, position: int) -> Job:
    """Return a job that reads the data :func:`kwire.log.segments.segment.end_before` needs."""
    shadow, entry = shadow_of(segment), None
    if segment.has_indexes:
        with suppress(WouldWait):
            entry = segment.indexes.at_position(position, wait=False)

    def read() -> None:
        try:
            if entry is None:
                segments.end_before(shadow, position)
            else:
                shadow.file.read(entry[1], HEADER_SIZE)
        finally:
            shadow.file.close()

    return read


def committed_read(segments: Sequence[Segment], start_offset: int, end_offset: int) -> Job:
    """Return a job that reads the data a read_committed fetch of this range needs.

    The range starts in the first segment. The job also covers the lookup of the range's end, which
    has not been tried yet, and of the end that it has if too many transactions end in it.
    """
    loads = [load for s in segments if (load := s.indexes.aborted.load_in_thread()) is not None]
    return partial(
        run_all,
        [
            lookups(segments[0], start_offset, end_offset),
            partial(_read_aborted, loads, end_offset),
            _lookup_of_listed(segments[0], start_offset),
        ],
    )


def _lookup_of_listed(segment: Segment, start_offset: int) -> Job:
    shadow, aborted = shadow_of(segment), segment.indexes.aborted
    load = aborted.load_in_thread()
    end_in_memory = end_of_listed(aborted.entries(), start_offset) if load is None else None

    def read() -> None:
        end_offset = end_in_memory if load is None else end_of_listed(load.run(), start_offset)
        if end_offset is not None:
            try:
                _scan_to(shadow, shadow.floor(end_offset)[0], end_offset)
            finally:
                shadow.file.close()

    return read


def read_aborted(segments: Sequence[Segment], end_offset: int) -> Job:
    """Return a job that reads the aborted transactions of ``segments`` up to ``end_offset``."""
    loads = [load for s in segments if (load := s.indexes.aborted.load_in_thread()) is not None]
    return partial(run_all, [partial(_read_aborted, loads, end_offset)])


def _read_aborted(loads: Sequence[AbortedLoad], end_offset: int) -> None:
    """Read aborted transactions, stopping after the last segment that can overlap the range."""
    for load in loads:
        entries = load.run()
        if entries and entries[len(entries) - 1].last_stable_offset >= end_offset:
            return


def ages(segment: Segment) -> Job:
    """Return a job that reads the data :meth:`Segment.largest_timestamp` needs.

    If the segment's time index is known to be wrong, the job builds its replacement instead.
    """
    if segment.repair is not None:
        return segment.repair.build
    shadow, base_offset = shadow_of(segment), segment.base_offset

    def read() -> None:
        try:
            largest, relative = shadow.indexes.last_timestamp()
            segments.is_refuted(shadow, largest, base_offset + relative)
        finally:
            shadow.file.close()

    return read
