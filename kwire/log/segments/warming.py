"""The reads of a thread that bring into the page cache what a lookup needs (kwire.log.cold).

A job opens files of its own: the segment may be cut, removed or closed meanwhile.
"""

from collections.abc import Sequence
from functools import partial

from kwire.log.cold import Job, run_all
from kwire.log.formats import names, txn_index
from kwire.log.segments.files import SegmentFiles
from kwire.log.segments.segment import Segment


def lookups(segment: Segment, *offsets: int) -> Job:
    """Return a job that reads what :meth:`Segment.locate` of these offsets needs."""
    files = segment.files
    shadow = Segment(files.disk, files.directory, segment.base_offset, segment.written)
    starts = [segment.floor(o)[0] if segment.has_indexes else None for o in offsets]

    def read() -> None:
        try:
            for offset, start in zip(offsets, starts, strict=True):
                position = shadow.floor(offset)[0] if start is None else start
                for _, header in shadow.scan(position):
                    if header.last_offset >= offset:
                        break
        finally:
            shadow.file.close()

    return read


def committed_read(segments: Sequence[Segment], start_offset: int, end_offset: int) -> Job:
    """Return a job that reads what a read_committed fetch of this range needs.

    The range begins in the first of the segments. Its lookup is read too: it has not been tried.
    """
    cold = [s for s in segments if not s.has_indexes and not s.indexes.has_no_aborted]
    return partial(
        run_all,
        [
            lookups(segments[0], start_offset, end_offset),
            partial(_read_aborted, [segment.files for segment in cold], end_offset),
        ],
    )


def _read_aborted(cold: Sequence[SegmentFiles], end_offset: int) -> None:
    """Read aborted transactions, up to the entry after which none touches the range."""
    for files in cold:
        entries = txn_index.entries(files.read(names.TXN_INDEX))
        if any(entry.last_stable_offset >= end_offset for entry in entries):
            return
