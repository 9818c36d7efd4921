"""The aborted transactions that a read_committed fetch gets beside its records.

:mod:`kwire.log.formats.txn_index` has their entries as bytes, one file a segment. An answer lists
every aborted transaction that touches its range and no other (invariant 19).
"""

from bisect import bisect_left
from collections.abc import Sequence

from kwire.log.cold import WouldWait
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.log_segments import LogSegments
from kwire.log.region import FileRegion
from kwire.log.segments import warming


def find_aborted(
    log_segments: LogSegments, start_offset: int, end_offset: int, *, wait: bool = True
) -> list[AbortedTxn]:
    """Return aborted transactions that touch the range, sorted by their first offsets.

    Without ``wait`` it raises :class:`WouldWait` rather than wait for the disk.
    """
    aborted: list[AbortedTxn] = []
    segments = log_segments[log_segments.index_of(start_offset) :]
    try:
        for segment in segments:
            if segment.indexes.may_have_aborted:
                entries = segment.indexes.aborted_transactions(wait=wait)
                if _collect(entries, start_offset, end_offset, aborted):
                    break
    except WouldWait as cold:
        cold.disk = log_segments.disk
        cold.job = warming.committed_read(segments, start_offset, end_offset)
        raise
    aborted.sort(key=lambda entry: entry.first_offset)
    return aborted


def limit_to_region(
    log_segments: LogSegments,
    aborted: list[AbortedTxn],
    start_offset: int,
    region: FileRegion,
    *,
    wait: bool,
) -> list[AbortedTxn]:
    """Return those of the aborted transactions that begin before the end of a region.

    The region begins at ``start_offset``; it is closed if its end cannot be read.
    """
    if not aborted:
        return aborted
    try:
        end_offset = log_segments.end_of_region(start_offset, region, wait=wait)
    except BaseException:
        region.close()
        raise
    return [entry for entry in aborted if entry.first_offset < end_offset]


def _collect(
    entries_in_order: Sequence[AbortedTxn],
    start_offset: int,
    end_offset: int,
    into: list[AbortedTxn],
) -> bool:
    """Collect the transactions of a segment that touch the range.

    Return whether no later segment has such a transaction.
    """
    first = bisect_left(entries_in_order, start_offset, key=_last_offset)
    for index in range(first, len(entries_in_order)):
        entry = entries_in_order[index]
        if entry.first_offset < end_offset:
            into.append(entry)
        if entry.last_stable_offset >= end_offset:
            return True
    return False


def _last_offset(entry: AbortedTxn) -> int:
    return entry.last_offset
