"""The append of a usual batch, as one function.

Most batches only need to be written: they continue their producer's sequence and, if any, its open
transaction, fit in the active segment, and neither the disk nor the partition is in a special
state. :func:`append_usual` appends such a batch in one step. For every other batch it returns None,
without having changed anything, and the general path (:meth:`Partition.append`) decides.

Rules: the general path is the authority, and this function must leave the log, the producers and
the waits as the general path would (``tests/replica/test_usual_append.py`` compares the two). State
that may change between two batches is read here for each batch, except for the state that
:mod:`kwire.log.segments.append_limits` combines into limits. All errors, except for those of the
write itself, are raised by the general path. Tuples are unpacked instead of being read by name, as
one field read by its name takes as long as five that are unpacked.
"""

from typing import Final

from kwire.log.config import LogConfig
from kwire.log.error_mapping import storage_error
from kwire.log.segments.append_limits import AppendLimits
from kwire.log.segments.segment import Segment
from kwire.records.build import PLACE
from kwire.records.header import (
    CONTROL,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)
from kwire.replica.partition import ACKS_ALL, EVERYONE, Partition, ProduceResult

_FLAGS: Final = CONTROL | LOG_APPEND_TIME | TRANSACTIONAL
_PLACE_SIZE: Final = PLACE.size
_NO_LIMITS: Final = (None, 0, 0, 0, 0, 0)


def append_usual(
    partition: Partition, records: Buffer, header: BatchHeader, acks: int, now: float, now_ms: int
) -> ProduceResult | None:
    """Append a checked batch and return the result; None if the batch is not usual."""
    leader, log = partition.leader, partition.log
    segment, disk = log.segments.active, log.disk
    _, length, _, _, _, attributes, last_delta, oldest, newest, producer_id, _, _, _ = header
    size, flags = length + LENGTH_END, attributes & _FLAGS
    if (
        leader is None
        or (flags and flags != TRANSACTIONAL)
        or disk.slow
        or disk.full
        or size != len(records)
        or (acks == ACKS_ALL and len(leader.isr) < leader.min_isr)
    ):
        return None
    config, base_offset = log.config, log.end_offset
    # The settings that the limits are for, and the limits.
    limited, position_max, offset_max, newest_max, after_ms, before_ms = (
        segment.limits or _NO_LIMITS
    )
    end_position, end_offset = segment.size + size, base_offset + last_delta + 1
    if (
        limited is not config
        or end_position > position_max
        or end_offset > offset_max
        or newest > newest_max
        or newest - now_ms > after_ms
        or now_ms - oldest > before_ms
    ):
        if not log.writer.queue:
            segment.limits = _append_limits(segment, config, log.flush_state.recovery_point)
        return None
    producers, producer = log.producers, None
    if producer_id > NO_PRODUCER:
        producer = producers.find_next(header)
        if producer is None or (producer.open_from >= 0) is not (flags != 0):
            return None
    elif flags:
        return None
    leader_epoch = leader.leader_epoch
    parts = PLACE.pack(base_offset, length, leader_epoch), memoryview(records)[_PLACE_SIZE:]
    try:
        segment.write(parts, log.writer.uses_reserve)
    except OSError as error:
        raise storage_error(log.changes, error) from error
    segment.written = end_position
    segment.note(size, end_offset, newest, config.index_interval_bytes)
    log.writer.written_offset = log.end_offset = end_offset
    if not log.changes.is_marked:
        log.changes.mark()
    if producer is not None:
        producer.add(header, end_offset - 1, newest)
        if flags:
            partition.verifications.on_appended(producer_id)
    if leader.followers or producers.open_starts or producers.unreplicated:
        readable = partition.on_appended(leader, end_offset, size, now)
    else:
        leader.log_end = log.high_watermark = end_offset
        readable = EVERYONE
    start = log.log_start
    return ProduceResult(
        base_offset, NO_TIMESTAMP, start, end_offset, leader_epoch, readable, size, True
    )


def _append_limits(segment: Segment, config: LogConfig, recovery_point: int) -> AppendLimits | None:
    """Return the limits for the next batches of a segment; None if all need the general path.

    There are no limits for an empty segment, for a segment whose first batch has a missing or
    unknown timestamp, and for topics whose timestamps the broker sets.
    """
    first_timestamp = segment.first_timestamp
    if first_timestamp < 0 or not segment.size or config.log_append_time:
        return None
    entry_count = segment.indexes.free_entries(config.segment_index_bytes)
    return AppendLimits(
        config,
        min(
            config.segment_bytes,
            segment.space.end,
            segment.size + entry_count * config.index_interval_bytes,
        ),
        min(segment.last_offset_max + 1, recovery_point + config.flush_messages - 1),
        first_timestamp + config.max_segment_ms - segment.roll_jitter_ms,
        config.timestamp_after_max_ms,
        config.timestamp_before_max_ms,
    )
