"""The five codecs of a batch's payload, each in the framing that Kafka's clients use.

Decompression has a size limit: it rejects a larger payload and never touches more memory than that.
Compression and decompression release the GIL, so a service may run them in a thread.

snappy uses the framing of xerial's Java library (raw blocks can be read too). lz4 frames are
written with independent blocks, the only kind that the Java client reads.
"""

from typing import Final

from kwire.records.header import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_GZIP_MEMBERS: Final = 1000
"""The largest number of members read: producers write one, and even empty members cost time."""
_GZIP_PIECE: Final = 4 * 1024
_GZIP_PIECE_MAX: Final = 1024 * 1024
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
"""Version 1, independent blocks of at most 64 KB, no content checksum; header checksum."""
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_BLOCK_MAX: Final = 4 * 1024 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_END: Final = bytes(4)


class BadPayload(ValueError):
    """A payload that does not decompress, or is larger than the limit."""


class PayloadTooLarge(BadPayload):
    """A payload whose decompressed size is above the limit."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data`` in the codec's framing; each codec has its own range of ``level``."""
    if codec == NONE:
        return bytes(data)
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level if level is not None and level >= 0 else 6))
    if codec == SNAPPY:
        return _xerial(data)
    if codec == LZ4:
        return _lz4_frame(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, 3 if level is None else level))
    raise BadPayload(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> Buffer:
    """Decompress ``data`` to at most ``limit`` bytes; raises :class:`BadPayload`."""
    if codec == NONE:
        return data
    import cramjam

    try:
        if codec == GZIP:
            return _gunzip(data, limit)
        if codec == SNAPPY:
            return _unsnappy(data, limit)
        if codec == LZ4:
            return _unlz4(data, limit)
        if codec == ZSTD:
            return _within(cramjam.zstd.decompress_into, data, limit)
    except cramjam.DecompressionError as error:
        raise BadPayload(f"{NAMES[codec]}: {error}") from None
    raise BadPayload(f"unknown compression codec {codec}")


def decompress_legacy_lz4(data: Buffer, limit: int) -> Buffer:
    """Decompress lz4 of magic 0, ignoring the wrong checksum in its frame header."""
    view = memoryview(data)
    if len(view) < 7 or bytes(view[:4]) != _LZ4_MAGIC:
        raise BadPayload("lz4: no frame")
    flags = view[4]
    pos = 6 + (8 if flags & 0x08 else 0) + 1
    plain, _ = _lz4_blocks(view, pos, limit, _LZ4_BLOCK_MAX, trailer=4 if flags & 0x10 else 0)
    return plain


def _unlz4(data: Buffer, limit: int) -> Buffer:
    """Decompress lz4 frames; a single frame with the usual header is decompressed block by block.

    Creating the library's frame decoder takes several times as long as decompressing 16 KB.
    """
    view = memoryview(data)
    if view[: len(_LZ4_HEADER)] == _LZ4_HEADER:
        plain, end = _lz4_blocks(view, len(_LZ4_HEADER), limit, _LZ4_BLOCK)
        if end == len(view):
            return plain
    import cramjam

    return _within(cramjam.lz4.decompress_into, data, limit)


def _lz4_blocks(
    view: memoryview, pos: int, limit: int, block_max: int, *, trailer: int = 0
) -> tuple[Buffer, int]:
    """Decompress a frame's independent blocks from ``pos`` onwards; also return the frame's end.

    ``trailer``: the bytes of the checksum after each block, which is not compared.
    """
    import cramjam

    out, room = bytearray(), bytearray()
    while True:
        if pos + 4 > len(view):
            raise BadPayload("lz4: the frame is cut off")
        word = int.from_bytes(view[pos : pos + 4], "little")
        pos += 4
        if word == 0:
            return out, pos
        size = word & ~_LZ4_STORED
        block = view[pos : pos + size]
        if len(block) < size:
            raise BadPayload("lz4: a block is cut off")
        pos += size + trailer
        if size > block_max:
            raise BadPayload(f"lz4: a block of {size} bytes")
        if not word & _LZ4_STORED:
            room = room or bytearray(block_max)
            try:
                count = cramjam.lz4.decompress_block_into(block, room)
            except cramjam.DecompressionError as error:
                raise BadPayload(f"lz4: {error}") from None
            block = memoryview(room)[:count]
        if len(out) + len(block) > limit:
            raise PayloadTooLarge(f"lz4: more than {limit} bytes")
        if not out and view[pos : pos + 4] == _LZ4_END:
            return block, pos + 4  # Usually there is one block, which need not be copied.
        out += block


def _within(into: object, data: Buffer, limit: int) -> memoryview:
    """Decompress into a buffer, retrying with a larger buffer up to the limit."""
    size = min(limit, max(4096, 8 * len(data)))
    import cramjam

    while True:
        room = bytearray(size)
        try:
            count = into(data, room)  # type: ignore[operator]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size >= limit:
                raise PayloadTooLarge(f"more than {limit} bytes") from None
            size = min(limit, size * 8)
            continue
        return memoryview(room)[:count]


def _gunzip(data: Buffer, limit: int) -> bytearray:
    """Decompress gzip members one after another, feeding their bytes in pieces.

    zlib copies the bytes of a piece that follow the member, so the pieces start small: if every
    piece were the whole rest, thousands of empty members would copy gigabytes.
    """
    import zlib

    view, out, pos = memoryview(data), bytearray(), 0
    for _ in range(_GZIP_MEMBERS):
        member, size = zlib.decompressobj(31), _GZIP_PIECE
        while not member.eof:
            piece = view[pos : pos + size]
            if not piece:
                raise BadPayload("gzip: the stream is cut off")
            try:
                out += member.decompress(piece, limit - len(out) + 1)
            except zlib.error as error:
                raise BadPayload(f"gzip: {error}") from None
            if len(out) > limit:
                raise PayloadTooLarge(f"gzip: more than {limit} bytes")
            pos += len(piece) - len(member.unused_data) - len(member.unconsumed_tail)
            size = min(2 * size, _GZIP_PIECE_MAX)
        if pos == len(view):
            return out
    raise BadPayload(f"gzip: more than {_GZIP_MEMBERS} members")


def _xerial(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _unsnappy(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _unsnappy_block(view, limit)
    out = bytearray()
    pos = 16
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if pos + size > len(view):
            raise BadPayload("snappy: a block is cut off")
        out += _unsnappy_block(view[pos : pos + size], limit - len(out))
        pos += size
    return out


def _unsnappy_block(block: memoryview, limit: int) -> bytes:
    import cramjam

    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise PayloadTooLarge(f"snappy: more than {limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4_frame(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        plain = view[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)
