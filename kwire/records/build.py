"""Builds batches, and stamps batches that clients built.

:func:`stamp` is on the produce path: it returns the first bytes of the batch as they are stored;
the rest of the batch is written unchanged. The other functions build batches that the broker itself
writes.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kwire.records import compression as codecs
from kwire.records.crc import crc32c
from kwire.records.header import (
    ATTRIBUTES_MASK,
    ATTRIBUTES_POS,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)

PLACE: Final = struct.Struct(">qii")
"""The first bytes of a batch, which a leader sets: base offset, length and leader epoch."""
_BEFORE_COVERED: Final = struct.Struct(">qiibI")
"""The bytes that the CRC does not cover: place, magic and the CRC itself."""
_COVERED: Final = struct.Struct(">hiqqqhii")
_LOW_ATTRIBUTES: Final = 22
_NULL: Final = b"\1"
"""The length of a null key or value, which is -1."""
_ONE_BYTE_END: Final = 64
_TWO_BYTES_END: Final = 8192
_ONE_BYTE: Final = tuple(bytes([value << 1]) for value in range(_ONE_BYTE_END))
"""The varints of the values from 0, as long as one byte is enough."""


class New(NamedTuple):
    """A record to write; the batch determines its offset and, by default, its timestamp."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int | None = None


def batch(
    records: Sequence[New],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: int = codecs.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Build a batch of consecutive records; ``timestamp_ms`` is the default timestamp."""
    times = [timestamp_ms if r.timestamp is None else r.timestamp for r in records]
    base_timestamp = times[0] if times else timestamp_ms
    payload = b"".join(
        encode_record(time - base_timestamp, delta, r.key, r.value, r.headers)
        for delta, (time, r) in enumerate(zip(times, records, strict=True))
    )
    flags = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=compression | flags,
        last_offset_delta=max(len(records) - 1, 0),
        base_timestamp=base_timestamp,
        max_timestamp=max(times, default=timestamp_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble(header, codecs.compress(compression, payload, level))


class Payload:
    """Records encoded one by one, for a batch whose offset and timestamp are set later.

    This lets a large batch be encoded in slices: :meth:`batch` then only makes one copy and the
    CRC, 0.1 ms for 2,000 records of 70 bytes.
    """

    __slots__ = ("_parts",)

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self._parts: list[bytes] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, value: bytes) -> None:
        """Encode one more record, which has only a value; it will have the batch's timestamp."""
        self._parts.append(encode_record(0, len(self._parts), None, value))

    def batch(self, *, timestamp_ms: int, base_offset: int, leader_epoch: int) -> bytes:
        """Build the batch; there must be at least one record."""
        header = BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=codecs.NONE,
            last_offset_delta=len(self._parts) - 1,
            base_timestamp=timestamp_ms,
            max_timestamp=timestamp_ms,
            producer_id=NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=len(self._parts),
        )
        return assemble(header, b"".join(self._parts))


def of_payload(
    payload: Buffer,
    count: int,
    timestamp_ms: int,
    producer: tuple[int, int] | None = None,
) -> bytes:
    """Build the batch of the ``count`` records encoded in ``payload``, with one timestamp.

    ``producer``: the id and epoch of the producer to whose transaction the records belong, if any.
    """
    attributes, (producer_id, epoch) = codecs.NONE, (NO_PRODUCER, -1)
    if producer is not None:
        attributes, (producer_id, epoch) = TRANSACTIONAL, producer
    times = timestamp_ms, timestamp_ms
    covered = _COVERED.pack(attributes, count - 1, *times, producer_id, epoch, NO_SEQUENCE, count)
    return _seal(covered, payload)


def assemble(header: BatchHeader, payload: Buffer) -> bytes:
    """Build a batch from a header and a compressed payload, setting length and CRC."""
    return _seal(_COVERED.pack(*header[5:]), payload, header.base_offset, header.leader_epoch)


def _seal(covered: bytes, payload: Buffer, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """Return the batch of which the CRC covers ``covered`` and the payload."""
    length = HEADER_SIZE - LENGTH_END + len(payload)
    crc = crc32c(payload, crc32c(covered))
    front = _BEFORE_COVERED.pack(base_offset, length, leader_epoch, 2, crc)
    return b"".join((front, covered, payload))


def rebuild(
    header: BatchHeader,
    payload: Buffer,
    record_count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    has_delete_horizon: bool,
) -> bytes:
    """Rebuild a batch with only the records that compaction keeps, at least one.

    ``payload`` holds these records, uncompressed. Their offset deltas are those of the original
    batch; their timestamp deltas are relative to ``base_timestamp``, which is the delete horizon if
    the batch has one (KIP-534). Offsets, sequences and codec are those of ``header``, even if the
    last record was removed.
    """
    attributes = header.attributes & ATTRIBUTES_MASK & ~DELETE_HORIZON
    changed = BatchHeader(
        *header[:5],
        attributes | (DELETE_HORIZON if has_delete_horizon else 0),
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    return assemble(changed, codecs.compress(header.compression, payload))


def rebuild_empty(header: BatchHeader) -> bytes:
    """Rebuild a batch without records, which preserves a producer's last sequence or an offset."""
    attributes = header.attributes & ATTRIBUTES_MASK & ~(CODEC_MASK | DELETE_HORIZON)
    changed = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return assemble(changed, b"")


def recompress(
    buf: Buffer, header: BatchHeader, codec: int, limit: int, level: int | None = None
) -> bytes:
    """Recompress a batch's payload with another codec, without parsing the records."""
    payload = memoryview(buf)[HEADER_SIZE : header.size]
    plain = codecs.decompress(header.compression, payload, limit)
    changed = header._replace(attributes=header.attributes & ~0x07 | codec)
    return assemble(changed, codecs.compress(codec, plain, level))


def stamp(
    buf: Buffer, *, base_offset: int, leader_epoch: int, append_time_ms: int | None = None
) -> bytes:
    """Return the first bytes of a batch as they must be stored; the rest stays unchanged.

    These are 16 bytes, which the CRC does not cover, if only offset and epoch change. They are the
    whole header if the append time is written, or if a client's flag for an append time is removed.
    """
    length = int.from_bytes(buf[8:LENGTH_END], "big")
    if append_time_ms is None and not buf[_LOW_ATTRIBUTES] & LOG_APPEND_TIME:
        return PLACE.pack(base_offset, length, leader_epoch)
    header = BatchHeader._make(HEADER.unpack_from(buf, 0))
    if append_time_ms is None:
        header = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME)
    else:
        header = header._replace(
            attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=append_time_ms
        )
    covered = _COVERED.pack(*header[5:])
    payload = memoryview(buf)[HEADER_SIZE : length + LENGTH_END]
    crc = crc32c(payload, crc32c(covered))
    return HEADER.pack(base_offset, length, leader_epoch, 2, crc, *header[5:])


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """Encode one record, preceded by its length, as in an uncompressed payload."""
    parts = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    if key is None:
        parts.append(_NULL)
    else:
        parts += varint(len(key)), key
    if value is None:
        parts.append(_NULL)
    else:
        parts += varint(len(value)), value
    parts.append(varint(len(headers)))
    for name, content in headers:
        parts += varint(len(name)), name
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    record = b"".join(parts)
    return varint(len(record)) + record


def varint(value: int) -> bytes:
    """Return ``value`` as a signed varint, as records have them."""
    if 0 <= value < _TWO_BYTES_END:
        if value < _ONE_BYTE_END:
            return _ONE_BYTE[value]
        return bytes((value << 1 & 0x7F | 0x80, value >> 6))
    value = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


assert _COVERED.size + ATTRIBUTES_POS == HEADER_SIZE
