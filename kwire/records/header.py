"""The 61-byte header of a record batch (magic 2).

One ``struct`` reads all of it; no code here reads a record. The CRC covers everything from the
attributes onwards, so base offset and leader epoch can be set without changing it.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from kwire.errors import CorruptMessage
from kwire.records.crc import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
"""61 bytes, from the base offset to the record count."""
LENGTH_END: Final = 12
"""The bytes before those that the length field counts: base offset and length."""
MAGIC_POS: Final = 16
CRC_POS: Final = 17
ATTRIBUTES_POS: Final = 21
"""The position from which the CRC covers the batch."""
MIN_LENGTH: Final = 14
"""The smallest valid length field of any magic."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
ATTRIBUTES_MASK: Final = 0x7F
"""The bits that have a meaning; Apache Kafka clears the others when it rebuilds a batch."""

NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF


class BatchHeader(NamedTuple):
    """A batch's header; the fields are in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """The first record's timestamp, or the delete horizon if the attributes say so."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    def can_follow(self, end_offset: int) -> bool:
        """Return whether this batch can continue a log that ends at ``end_offset``.

        Gaps are valid: compaction leaves them, and followers copy them.
        """
        return self.base_offset >= end_offset and self.last_offset_delta >= 0

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; -1 if the batch has none. 2147483647 is followed by 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def compression(self) -> int:
        """The codec's number (see :mod:`kwire.records.compression`)."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may remove the batch's tombstones and markers.

        It is None until the first compaction sets it.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def parse(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Read the header at ``pos``; raises ``struct.error`` if fewer than 61 bytes are left."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buf, pos))


def crc_ok(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Return whether the CRC matches the bytes from the attributes to the end of the batch."""
    view = memoryview(buf)[pos + ATTRIBUTES_POS : pos + header.length + LENGTH_END]
    return bool(crc32c(view) == header.crc)


def headers(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every whole batch; an incomplete last batch is left out.

    Raises :class:`CorruptMessage` for a length or magic that a batch of version 2 cannot have.
    """
    end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
        if header.magic != 2 or header.length < HEADER_SIZE - LENGTH_END:
            raise CorruptMessage(
                f"no record batch at position {pos}: length {header.length}, magic {header.magic}"
            )
        following = pos + header.length + LENGTH_END
        if following > end:
            return
        yield pos, header
        pos = following
