"""Batches for tests of the log."""

import zlib

from kwire.log import timestamp_search
from kwire.log.partition_log import LogAppendInfo, PartitionLog
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import headers, parse
from kwire.records.iterate import records

TIME_MS = 1_700_000_000_000


def encode(values: list[bytes], *, timestamp_ms: int = TIME_MS, **more: object) -> bytes:
    return batch([New(None, v) for v in values], timestamp_ms=timestamp_ms, **more)  # type: ignore[arg-type]


def append(
    log: PartitionLog,
    values: list[bytes],
    *,
    epoch: int = 0,
    now_ms: int = TIME_MS,
    timestamp_ms: int = TIME_MS,
    **more: object,
) -> LogAppendInfo:
    """Append one batch as the leader does."""
    data = encode(values, timestamp_ms=timestamp_ms, **more)
    return log.append_leader(memoryview(data), parse(data), epoch, now_ms)


def content(log: PartitionLog, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record that can be read."""
    offset = log.log_start if offset is None else offset
    pairs = []
    while offset < log.writer.written_offset:
        with log.read(offset, 10_000, end_offset=log.writer.written_offset) as region:
            data = region.read()
        if not data:
            break
        before = offset
        for pos, header in headers(data):
            pairs += [(r.offset, r.value) for r in records(data, pos, header) if r.offset >= before]
            offset = header.next_offset
        assert offset > before
    return pairs


def marker(producer_id: int, *, commit: bool, **more: int) -> bytes:
    """The batch that ends a transaction of a producer's first epoch."""
    fields = {"coordinator_epoch": 0, "producer_epoch": 0, "timestamp_ms": TIME_MS, **more}
    return end_txn_marker(commit=commit, producer_id=producer_id, **fields)


def end_transaction(
    log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0
) -> LogAppendInfo:
    """Append a marker as the leader does for the coordinator."""
    data = marker(producer_id, commit=commit)
    return log.append_leader(memoryview(data), parse(data), epoch, TIME_MS, from_client=False)


def abort_transactions(log: PartitionLog, count: int, producer_id: int = 5) -> None:
    """Append aborted transactions of one record, and make all of them readable."""
    more = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
    for number in range(count):
        append(log, [b"v"], base_sequence=number, **more)
        end_transaction(log, producer_id, commit=False)
    log.high_watermark = log.end_offset


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at least as young as ``timestamp``."""
    return timestamp_search.run(timestamp_search.first_at_least(log, timestamp))


def max_timestamp(log: PartitionLog) -> tuple[int, int]:
    """The largest timestamp and the first record that has it, (-1, -1) without one."""
    newest = timestamp_search.run(timestamp_search.youngest(log))
    return (-1, -1) if newest is None else (newest.timestamp, newest.offset)


def old_format_segment() -> bytes:
    """Return a segment with one message of format 1, whose CRC is right."""
    body = b"\1\0" + bytes(8) + (-1).to_bytes(4, "big", signed=True) + b"\0\0\0\x64" + b"v" * 100
    message = zlib.crc32(body).to_bytes(4, "big") + body
    return bytes(8) + len(message).to_bytes(4, "big") + message
