"""The aborted transactions that a read_committed fetch returns with its records.

:mod:`kwire.log.formats.txn_index` encodes their entries, one file per segment. A response lists
every aborted transaction that overlaps its range, and no other (invariant 19). Usually at most
:data:`LISTED_MAX` of them end in the range, so that neither the search nor the encoding of a
response takes long; the next fetch continues behind them. If as many others overlap the range too,
it is not shortened: each of the next fetches would list the rest again.
"""

from bisect import bisect_left
from functools import partial
from operator import attrgetter

from kwire.log.cold_lookups import WouldWait, run_all
from kwire.log.formats.txn_index import BLOCK, LISTED_MAX, AbortedTxn, Entries, end_of_listed
from kwire.log.log_segments import LogSegments
from kwire.log.partition_log import PartitionLog
from kwire.log.region import FileRegion
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment


def find_aborted(
    log_segments: LogSegments, start_offset: int, end_offset: int, *, wait: bool = True
) -> list[AbortedTxn]:
    """Return the aborted transactions that overlap the range, sorted by their first offsets.

    If ``wait`` is false, it raises :class:`WouldWait` instead of waiting for the disk.
    """
    aborted: list[AbortedTxn] = []
    for segment in _from(log_segments, start_offset):
        if segment.indexes.aborted.may_have_entries:
            entries = segment.indexes.aborted.entries(wait=wait)
            if _collect(entries, start_offset, end_offset, aborted):
                break
    aborted.sort(key=attrgetter("first_offset"))
    return aborted


def read_committed(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    *,
    end_offset: int,
    at_least_one: bool = True,
    wait: bool = True,
) -> tuple[FileRegion, list[AbortedTxn]]:
    """Return the result of :meth:`PartitionLog.read` and the aborted transactions that overlap it.

    The search ends with the region, wherever the last stable offset is. The region is shortened so
    that :data:`LISTED_MAX` of the transactions end in it, unless more than as many others overlap.
    """
    segments = log.segments
    try:
        region = log.read(
            offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one, wait=wait
        )
        try:
            if not any(each.indexes.aborted.may_have_entries for each in _from(segments, offset)):
                return region, []  # Usually no transaction was aborted.
            region_end = min(end_offset, segments.end_of_region(offset, region, wait=wait))
            listed_end = _end_of_listed(segments, offset, region_end, wait=wait)
            if listed_end < region_end:
                shorter = log.read(
                    offset, max_bytes, end_offset=listed_end, at_least_one=at_least_one, wait=wait
                )
                aborted = _find_few(segments, offset, listed_end, shorter, wait=wait)
                if aborted is not None:
                    region.close()
                    return shorter, aborted
            return region, find_aborted(segments, offset, region_end, wait=wait)
        except BaseException:
            region.close()
            raise
    except WouldWait as cold:  # Later reads, which were not attempted yet, may have to wait too.
        ours, *others = _from(segments, offset)
        region_end = min(end_offset, others[0].base_offset) if others else end_offset
        cold.disk = segments.disk
        committed = warming.committed_read([ours, *others], offset, region_end)
        cold.job = partial(run_all, [cold.job, committed])
        raise


def _find_few(
    log_segments: LogSegments, offset: int, end_offset: int, shorter: FileRegion, *, wait: bool
) -> list[AbortedTxn] | None:
    """Return the aborted transactions that overlap a region shortened to ``end_offset``.

    If they are so many that it should not be shortened, close ``shorter`` and return None.
    """
    try:
        if len(shorter):  # Compaction may have removed all batches below the marker.
            aborted = find_aborted(log_segments, offset, end_offset, wait=wait)
            if len(aborted) <= 2 * LISTED_MAX:
                return aborted
    except BaseException:
        shorter.close()
        raise
    shorter.close()
    return None


def _end_of_listed(
    log_segments: LogSegments, start_offset: int, end_offset: int, *, wait: bool
) -> int:
    """Return the end of the range, or of its part in which :data:`LISTED_MAX` transactions end.

    The range is that of a region, so it ends in the first segment with batches.
    """
    for segment in _from(log_segments, start_offset):
        if segment.base_offset >= end_offset:
            break
        if segment.indexes.aborted.may_have_entries:
            end = end_of_listed(segment.indexes.aborted.entries(wait=wait), start_offset)
            if end is not None:
                return min(end, end_offset)
    return end_offset


def _from(log_segments: LogSegments, offset: int) -> list[Segment]:
    """Return the segments from the one that contains ``offset`` onwards."""
    return log_segments[log_segments.index_of(offset) :]


def _collect(
    entries_in_order: Entries, start_offset: int, end_offset: int, into: list[AbortedTxn]
) -> bool:
    """Collect a segment's transactions that overlap the range into ``into``.

    Return True if later segments cannot have such a transaction: the last stable offset never
    decreases from one entry to the next.
    """
    first = bisect_left(entries_in_order, start_offset, key=attrgetter("last_offset"))
    stop = bisect_left(entries_in_order, end_offset, first, key=attrgetter("last_stable_offset"))
    is_last = stop < len(entries_in_order)
    stop += is_last
    blocks = range(first // BLOCK, -(-stop // BLOCK))
    for block in entries_in_order.minima.below(end_offset, entries_in_order, blocks):
        near = entries_in_order[max(first, block * BLOCK) : min(stop, (block + 1) * BLOCK)]
        into.extend(entry for entry in near if entry.first_offset < end_offset)
    return is_last
