"""The newest offset of each key in the dirty part of a log, which decides which records are kept.

Rules: only committed data is mapped, from the first dirty offset onwards. Every key up to
``latest`` is mapped. If the map becomes full, ``latest`` is an offset inside a batch; the pass ends
there, and the next pass starts after it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Final

import attrs

from kwire.log.compaction.job import CleaningFailed, CleaningJob, SourceSegment
from kwire.log.compaction.source import Pace, SegmentReader, SourceBatch, aborted_transactions
from kwire.log.compaction.transactions import TransactionState
from kwire.log.disk import Disk
from kwire.log.formats.txn_index import AbortedTxn
from kwire.records.header import BatchHeader, Buffer
from kwire.records.iterate import BadRecords, unpacked_records
from kwire.speedups import OffsetMap

SLOT_BYTES: Final = 24
_SLOTS_MIN: Final = 16


@attrs.frozen(eq=False, repr=False)
class KeyOffsets:
    """The map of a pass."""

    offsets: OffsetMap
    latest: int
    """The offset up to which every key is mapped, inclusive."""
    bytes_read: int
    utilization: float
    """The share of the slots that the job's memory has room for and that are in use, 0 to 1."""


def map_keys(disk: Disk, job: CleaningJob, pace: Pace) -> KeyOffsets:
    """Map the keys of the dirty segments up to their end, or until the map is full."""
    offsets = OffsetMap(_memory_bytes(job), job.load_factor)
    ends = segment_ends(job)
    dirty = [
        segment
        for segment, end in zip(job.segments, ends, strict=True)
        if end > job.first_dirty and segment.base_offset < job.end_offset
    ]
    transactions = TransactionState(entries_of(disk, job, dirty))
    filling = _Filling(offsets, job.first_dirty, transactions)
    for segment in dirty:
        end = ends[job.segments.index(segment)]
        transactions.load(end)
        reader = SegmentReader(disk, job.directory, segment, end, job.buffer_bytes, pace)
        with closing(reader.batches()) as batches:
            if not all(filling.add(batch) for batch in batches):
                break
        # The offsets between the last batch and the next segment have no keys.
        filling.latest = min(end, job.end_offset) - 1
    slots = max(job.memory_bytes // SLOT_BYTES, 1)
    return KeyOffsets(offsets, filling.latest, filling.bytes_read, len(offsets) / slots)


def segment_ends(job: CleaningJob) -> list[int]:
    """Return the end of each of a job's segments: the base offset of the next segment."""
    bases = [segment.base_offset for segment in job.segments]
    return [*bases, job.next_base][1:]


def entries_of(
    disk: Disk, job: CleaningJob, segments: Sequence[SourceSegment]
) -> Iterator[AbortedTxn]:
    """Yield the aborted transactions that have data in ``segments``, the job's last ones."""
    own = (aborted_transactions(disk, job.directory, segment) for segment in segments)
    return chain(chain.from_iterable(own), job.later_aborted)


def _memory_bytes(job: CleaningJob) -> int:
    """Return the size of the map, which need not exceed one key per dirty offset."""
    keys_max = max(job.end_offset - job.first_dirty, 0)
    slots = int(keys_max / job.load_factor) + _SLOTS_MIN
    return min(job.memory_bytes, slots * SLOT_BYTES)


class _Filling:
    """The state while a map is filled."""

    __slots__ = ("_first_dirty", "_offsets", "_transactions", "bytes_read", "latest")

    def __init__(
        self, offsets: OffsetMap, first_dirty: int, transactions: TransactionState
    ) -> None:
        self._offsets = offsets
        self._first_dirty = first_dirty
        self._transactions = transactions
        self.latest = first_dirty - 1
        self.bytes_read = 0

    def add(self, batch: SourceBatch) -> bool:
        """Map the keys of a batch; return whether the map had room for all of them."""
        header, last_offset = batch.header, batch.header.last_offset
        self.bytes_read += len(batch.data)
        if header.is_control:
            self._transactions.on_control(header, batch.control_type())
        elif not self._transactions.on_data(header) and last_offset >= self._first_dirty:
            payload = batch.payload()
            if not self._put(batch, payload):
                last = _last_mapped(payload, header, self._offsets, self._first_dirty)
                self.latest = max(self.latest, last)
                return False
        self.latest = max(self.latest, last_offset)
        return True

    def _put(self, batch: SourceBatch, payload: Buffer) -> bool:
        header = batch.header
        try:
            return self._offsets.put_records(
                payload, header.record_count, header.base_offset, self._first_dirty
            )
        except BadRecords as error:
            raise CleaningFailed(f"a batch is damaged ({error}): {batch.place}") from None


def _last_mapped(payload: Buffer, header: BatchHeader, offsets: OffsetMap, first_dirty: int) -> int:
    """Return the last offset of a batch that was mapped before the map was full, or -1.

    The records before it are mapped too. This runs at most once per pass. Without it, a batch with
    more keys than the map can hold would keep all passes from making progress.
    """
    last = -1
    for record in unpacked_records(bytes(payload), header):
        if record.key is not None and record.offset >= first_dirty:
            if offsets.get(record.key) < record.offset:
                break
            last = record.offset
    return last
