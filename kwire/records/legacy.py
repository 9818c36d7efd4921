"""Messages of magic 0 and 1, from logs of Kafka before 0.11: read only.

A compressed set is one message, the wrapper, whose value holds messages. The offsets of the inner
messages are absolute in magic 0; in magic 1 they are relative, and the wrapper's offset is that of
the last message.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from kwire.errors import CorruptMessage
from kwire.records import compression
from kwire.records.header import LENGTH_END, LOG_APPEND_TIME, NO_TIMESTAMP, Buffer

MIN_LENGTH: Final = 14
_FRONT: Final = struct.Struct(">qiIbB")
_INT32: Final = struct.Struct(">i")
_CRC_END: Final = 16
"""The position of the magic, with which the bytes begin that the CRC covers."""


class Message(NamedTuple):
    """One message, or the wrapper of a compressed set."""

    offset: int
    length: int
    crc: int
    crc_valid: bool
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & 0x07


def message(buf: Buffer, pos: int) -> Message:
    """Read the message at ``pos``; raises :class:`CorruptMessage` if it is cut off or damaged."""
    try:
        offset, length, crc, magic, attributes = _FRONT.unpack_from(buf, pos)
        end = pos + LENGTH_END + length
        body = bytes(buf[pos + _CRC_END : end])
        at, timestamp = 2, NO_TIMESTAMP
        if magic == 1:
            timestamp = int.from_bytes(body[2:10], "big", signed=True)
            at = 10
        key, at = _blob(body, at)
        value, at = _blob(body, at)
    except struct.error:
        raise CorruptMessage(f"a message at position {pos} is cut off") from None
    return Message(
        offset, length, crc, crc32(body) == crc, magic, attributes, timestamp, key, value
    )


def _blob(body: bytes, at: int) -> tuple[bytes | None, int]:
    (size,) = _INT32.unpack_from(body, at)
    at += 4
    if size < 0:
        return None, at
    if at + size > len(body):
        raise CorruptMessage(f"{size} bytes announced in a message with {len(body) - at} left")
    return body[at : at + size], at + size


def messages(outer: Message, limit: int) -> list[Message]:
    """Return the message itself, or the messages of a compressed set, with absolute offsets."""
    if not outer.codec:
        return [outer]
    payload = outer.value or b""
    if outer.magic == 0 and outer.codec == compression.LZ4:
        plain = compression.decompress_legacy_lz4(payload, limit)
    else:
        plain = compression.decompress(outer.codec, payload, limit)
    inner_messages: list[Message] = []
    pos = 0
    while pos < len(plain):
        inner = message(plain, pos)
        if inner.length < MIN_LENGTH or inner.codec:
            raise CorruptMessage("a compressed message inside a compressed message")
        inner_messages.append(inner)
        pos += LENGTH_END + inner.length
    if outer.magic == 1 and inner_messages:
        base = outer.offset - inner_messages[-1].offset
        stamp = outer.timestamp if outer.attributes & LOG_APPEND_TIME else None
        inner_messages = [
            inner._replace(
                offset=base + inner.offset,
                timestamp=inner.timestamp if stamp is None else stamp,
            )
            for inner in inner_messages
        ]
    return inner_messages
