"""Decides which batches of a log stay, and whether their records do.

Rules: no I/O; decided by the header alone. Data of an aborted transaction goes at once. A marker
goes once all data of its transaction is gone and ``delete.retention.ms`` has passed since a pass
noticed that (KIP-534): until then a slow reader may have read the data. A batch without records
stays if its header carries information: an active producer's last sequence or epoch, or the last
offset of the pass.
"""

from typing import NamedTuple

from kwire.log.compaction.job import ActiveProducers
from kwire.records.header import BatchHeader


class Verdict(NamedTuple):
    """The decision about one batch."""

    drops_records: bool
    keeps_empty: bool
    """The batch stays even if it has no records left."""
    is_spent_marker: bool
    """A control batch whose transaction has no data left; it gets a delete horizon."""


def judge(
    header: BatchHeader,
    *,
    is_spent: bool,
    active_producers: ActiveProducers,
    end_offset: int,
    now_ms: int,
) -> Verdict:
    """Return what happens to a batch.

    ``is_spent``: it is data of an aborted transaction, or a marker of a transaction without data.
    ``end_offset`` is the first uncleanable offset: the batch before it keeps the log's end known.
    """
    keeps_empty = header.next_offset == end_offset or _is_last_of(active_producers, header)
    if not is_spent:
        return Verdict(False, keeps_empty, False)
    drops_records = True
    if header.is_control:
        horizon_ms = header.delete_horizon_ms
        drops_records = horizon_ms is not None and horizon_ms <= now_ms
    return Verdict(drops_records, keeps_empty, header.is_control)


def keeps_tombstones(header: BatchHeader, now_ms: int) -> bool:
    """Return whether records without a value stay: until the batch's delete horizon."""
    horizon_ms = header.delete_horizon_ms
    return horizon_ms is None or now_ms < horizon_ms


def _is_last_of(active_producers: ActiveProducers, header: BatchHeader) -> bool:
    """Return whether a batch holds the last state of an active producer."""
    producer = active_producers.get(header.producer_id)
    if producer is None:
        return False
    epoch, last_offset = producer
    if last_offset is None:
        return header.is_control and header.producer_epoch == epoch
    return header.last_offset == last_offset
