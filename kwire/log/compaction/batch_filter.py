"""Decides which batch, if any, replaces a batch of the source.

Rules: a batch that loses no records is copied byte for byte. A batch that loses records keeps its
offsets, sequences, producer, leader epoch, codec and type of timestamp. Its largest timestamp
becomes that of the kept records; with LogAppendTime it stays the batch's own. The first pass that
keeps a tombstone, or a marker of a transaction without data, sets the batch's delete horizon to now
plus ``delete.retention.ms``; later passes do not move it. If the retention is so long that no
timestamp can express the horizon, none is set, and tombstones and markers stay forever.
"""

import logging
from typing import Final, NamedTuple

from kwire.log.compaction import retention
from kwire.log.compaction.job import CleaningFailed, CleaningJob
from kwire.log.compaction.key_offsets import KeyOffsets
from kwire.log.compaction.retention import Verdict
from kwire.log.compaction.source import SourceBatch
from kwire.records import build
from kwire.records.header import NO_TIMESTAMP, BatchHeader, Buffer
from kwire.records.iterate import BadRecords
from kwire.speedups import Retained, find_retained, rewrite

logger = logging.getLogger(__name__)

TIMESTAMP_MAX: Final = (1 << 63) - 1


class KeptBatch(NamedTuple):
    """A batch of the new segment."""

    data: Buffer
    max_timestamp: int
    next_offset: int


class BatchFilter:
    """The filter of a pass, with its counters."""

    __slots__ = (
        "_job",
        "_keys",
        "_new_horizon_ms",
        "keyless_dropped",
        "records_kept",
        "records_read",
    )

    def __init__(self, job: CleaningJob, keys: KeyOffsets) -> None:
        self._job = job
        self._keys = keys
        self._new_horizon_ms = job.now_ms + job.config.delete_retention_ms
        self.records_read = 0
        self.records_kept = 0
        self.keyless_dropped = 0

    def keep(self, batch: SourceBatch, verdict: Verdict) -> KeptBatch | None:
        """Return the batch that replaces this one; None if nothing of it is kept."""
        header = batch.header
        if verdict.drops_records and not verdict.keeps_empty:
            return None
        self.records_read += header.record_count
        if not verdict.drops_records and header.record_count:
            rebuilt = self._keep_records(batch, verdict)
            if rebuilt is not None:
                return rebuilt
        if not verdict.keeps_empty:
            return None
        return KeptBatch(build.rebuild_empty(header), header.max_timestamp, header.next_offset)

    def _keep_records(self, batch: SourceBatch, verdict: Verdict) -> KeptBatch | None:
        """Return a batch with the records that are kept; None if there are none."""
        header, payload = batch.header, batch.payload()
        try:
            if header.is_control:
                retained = _whole(header, payload)
            else:
                keeps_tombstones = retention.keeps_tombstones(header, self._job.now_ms)
                retained = find_retained(
                    payload,
                    header.record_count,
                    header.base_offset,
                    self._keys.offsets,
                    self._keys.latest,
                    keeps_tombstones,
                )
            self.records_kept += retained.record_count
            self.keyless_dropped += retained.keyless_count
            if not retained.record_count:
                return None
            needs_horizon = retained.has_tombstones or verdict.is_spent_marker
            gets_horizon = (
                needs_horizon
                and header.delete_horizon_ms is None
                and self._new_horizon_ms <= TIMESTAMP_MAX
            )
            if retained.record_count == header.record_count and not gets_horizon:
                return KeptBatch(batch.data, header.max_timestamp, header.next_offset)
            return self._rebuild(batch, payload, retained, gets_horizon=gets_horizon)
        except BadRecords as error:
            raise CleaningFailed(f"a batch is damaged ({error}): {batch.place}") from None

    def _rebuild(
        self, batch: SourceBatch, payload: Buffer, retained: Retained, *, gets_horizon: bool
    ) -> KeptBatch:
        header = batch.header
        horizon_ms = header.delete_horizon_ms
        if gets_horizon:
            horizon_ms = self._new_horizon_ms
        is_append_time = header.is_log_append_time
        if is_append_time:
            first_timestamp = max_timestamp = header.max_timestamp
        else:
            first_timestamp = header.base_timestamp + retained.first_delta
            max_timestamp = max(header.base_timestamp + retained.max_delta, NO_TIMESTAMP)
        base_timestamp = first_timestamp if horizon_ms is None else horizon_ms
        # With LogAppendTime the records' own deltas have no meaning, so they are not changed.
        shift = 0 if is_append_time else header.base_timestamp - base_timestamp
        data = build.rebuild(
            header,
            rewrite(payload, retained.ranges, shift),
            retained.record_count,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            has_delete_horizon=horizon_ms is not None,
        )
        if len(data) > max(header.size, self._job.config.max_message_bytes):
            logger.warning(
                "a cleaned batch is larger than max.message.bytes %s size=%d max.message.bytes=%d",
                batch.place,
                len(data),
                self._job.config.max_message_bytes,
            )
        return KeptBatch(data, max_timestamp, header.next_offset)


def _whole(header: BatchHeader, payload: Buffer) -> Retained:
    """Return a verdict that keeps all records of a control batch."""
    delta = header.max_timestamp - header.base_timestamp
    return Retained([(0, len(payload))], header.record_count, 0, False, delta, delta)
