"""Reads the records in batches: for tools, coordinators, the metadata log and compaction.

The produce and fetch paths do not use it. Whatever the bytes are, the only exception is
:class:`BadRecords`, and no allocation is larger than the input or the limit.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kwire.errors import CorruptMessage
from kwire.records import compression, legacy
from kwire.records.header import (
    HEADER_SIZE,
    LENGTH_END,
    MAGIC_POS,
    NO_PRODUCER,
    NO_SEQUENCE,
    SEQUENCE_MASK,
    BatchHeader,
    Buffer,
    parse,
)

PAYLOAD_LIMIT: Final = 256 * 1024 * 1024
"""The default limit for a decompressed payload, in bytes."""
_MIN_RECORD: Final = 7
"""Bytes of length, attributes, two deltas, key length, value length and header count."""


class BadRecords(ValueError):
    """A payload that cannot be decoded into records."""


class Record(NamedTuple):
    """One record, its bytes copied out of the batch."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def batches(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield every whole batch of any magic; a message or message set counts as one."""
    end = len(buf)
    while end - pos > MAGIC_POS:
        length = int.from_bytes(buf[pos + 8 : pos + LENGTH_END], "big", signed=True)
        magic = buf[pos + MAGIC_POS]
        least = HEADER_SIZE - LENGTH_END if magic == 2 else legacy.MIN_LENGTH
        if magic > 2 or length < least:
            raise CorruptMessage(f"no batch at position {pos}: length {length}, magic {magic}")
        following = pos + LENGTH_END + length
        if following > end:
            return
        yield pos, parse(buf, pos) if magic == 2 else _legacy_header(buf, pos)
        pos = following


def _legacy_header(buf: Buffer, pos: int) -> BatchHeader:
    """Return the header of a message or message set as if it were a batch.

    A wrapper's offset is that of its last record; the first record's offset is inside.
    """
    outer = legacy.message(buf, pos)
    first, count = outer.offset, 1
    if outer.codec:
        try:
            inner = legacy.messages(outer, PAYLOAD_LIMIT)
        except compression.BadPayload as error:
            raise BadRecords(str(error)) from None
        first, count = (inner[0].offset if inner else first), len(inner)
    return BatchHeader(
        base_offset=first,
        length=outer.length,
        leader_epoch=-1,
        magic=outer.magic,
        crc=outer.crc,
        attributes=outer.attributes,
        last_offset_delta=outer.offset - first,
        base_timestamp=outer.timestamp,
        max_timestamp=outer.timestamp,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )


def records(
    buf: Buffer, pos: int, header: BatchHeader, limit: int = PAYLOAD_LIMIT
) -> Iterator[Record]:
    """Yield the records of the batch at ``pos`` with this header."""
    if header.magic != 2:
        yield from _legacy_records(buf, pos, limit)
        return
    payload = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    try:
        plain = bytes(compression.decompress(header.compression, payload, limit))
    except compression.BadPayload as error:
        raise BadRecords(str(error)) from None
    yield from unpacked_records(plain, header)


def unpacked_records(plain: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records of a batch from its decompressed payload."""
    _check_count(plain, header)
    at = 0
    base_offset, base_sequence = header.base_offset, header.base_sequence
    fixed_time = header.max_timestamp if header.is_log_append_time else None
    for _ in range(header.record_count):
        try:
            delta, offset_delta, key, value, headers, at = _record(plain, at)
        except IndexError:
            raise BadRecords("a record goes beyond its batch") from None
        sequence = -1 if base_sequence < 0 else (base_sequence + offset_delta) & SEQUENCE_MASK
        timestamp = header.base_timestamp + delta if fixed_time is None else fixed_time
        yield Record(base_offset + offset_delta, timestamp, sequence, key, value, headers)
    if at != len(plain):
        raise BadRecords(f"{len(plain) - at} bytes behind the last record")


def times(plain: bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record of a decompressed payload.

    Keys, values and headers are skipped without creating objects for them.
    """
    base_offset, base_time = header.base_offset, header.base_timestamp
    fixed_time = header.max_timestamp if header.is_log_append_time else None
    for delta, offset_delta, _, _ in _fronts(plain, header):
        timestamp = base_time + delta if fixed_time is None else fixed_time
        yield base_offset + offset_delta, timestamp


def _fronts(plain: bytes, header: BatchHeader) -> Iterator[tuple[int, int, int, int]]:
    """Yield each record's timestamp and offset deltas, its key's position and its end."""
    _check_count(plain, header)
    end = 0
    for _ in range(header.record_count):
        try:
            length, pos = read_varint(plain, end)
            end = pos + length
            if length <= 0 or end > len(plain):
                raise BadRecords(f"a record of {length} bytes with {len(plain) - pos} left")
            delta, pos = read_varint(plain, pos + 1, 70)
            offset_delta, pos = read_varint(plain, pos)
        except IndexError:
            raise BadRecords("a record goes beyond its batch") from None
        if pos > end:
            raise BadRecords("a record's length does not fit its fields")
        yield delta, offset_delta, pos, end
    if end != len(plain):
        raise BadRecords(f"{len(plain) - end} bytes behind the last record")


def _check_count(plain: bytes, header: BatchHeader) -> None:
    if header.record_count < 0 or header.record_count * _MIN_RECORD > len(plain):
        raise BadRecords(f"{header.record_count} records in {len(plain)} bytes")


def _record(
    data: bytes, pos: int
) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...], int]:
    length, pos = read_varint(data, pos)
    end = pos + length
    if length <= 0 or end > len(data):
        raise BadRecords(f"a record of {length} bytes with {len(data) - pos} left")
    delta, pos = read_varint(data, pos + 1, 70)
    offset_delta, pos = read_varint(data, pos)
    key, pos = _blob(data, pos, end)
    value, pos = _blob(data, pos, end)
    count, pos = read_varint(data, pos)
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    if count:
        if count < 0 or count * 2 > end - pos:
            raise BadRecords(f"{count} headers in {end - pos} bytes")
        pairs = []
        for _ in range(count):
            name, pos = _blob(data, pos, end)
            if name is None:
                raise BadRecords("a header without a key")
            content, pos = _blob(data, pos, end)
            pairs.append((name, content))
        headers = tuple(pairs)
    if pos != end:
        raise BadRecords("a record's length does not fit its fields")
    return delta, offset_delta, key, value, headers, end


def read_varint(data: bytes, pos: int, bits: int = 35) -> tuple[int, int]:
    """Return the varint at ``pos``, of at most ``bits`` bits, and the position after it."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    result, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = data[pos]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), pos + 1
        shift += 7
        if shift >= bits:
            raise BadRecords("a variable-length number is too long")


def _blob(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = read_varint(data, pos)
    if size < 0:
        return None, pos
    stop = pos + size
    if stop > end:
        raise BadRecords(f"{size} bytes announced with {end - pos} left")
    return data[pos:stop], stop


def _legacy_records(buf: Buffer, pos: int, limit: int) -> Iterator[Record]:
    outer = legacy.message(buf, pos)
    try:
        messages = legacy.messages(outer, limit)
    except (compression.BadPayload, CorruptMessage) as error:
        raise BadRecords(str(error)) from None
    for message in messages:
        yield Record(message.offset, message.timestamp, -1, message.key, message.value, ())
