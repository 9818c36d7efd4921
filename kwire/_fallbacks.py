"""The Python counterpart of ``_speedups.c``: walks over the records of an unpacked payload.

Rules:

* Both implementations accept and reject the same bytes, with the same results and messages
  (``tests/speedups``). Damage raises :class:`BadRecords`; no other exception depends on the bytes.
* A record is valid if Apache Kafka accepts it: a negative size of a key or value means null, a null
  header key is damage, and a record's length must match its fields. Numbers that do not fit in 32
  bits (64 for a timestamp delta) are damage too, whereas Kafka drops the upper bits.
* Only :mod:`kwire.speedups` and tests import this module.

The walk decodes one-byte numbers inline and returns the fields of many records in one list, because
a call or a generator step per record costs more than the decoding: 1.1 us per record of 100 bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kwire.records.header import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    Buffer,
    parse,
)
from kwire.records.iterate import BadRecords
from kwire.records.walked import CheckedRecords, Retained

IMPLEMENTATION: Final = "python"
SLOT_BYTES: Final = 24
"""The memory per key: 16 bytes for its hash and 8 for its offset."""
KEYLESS_MAX: Final = 1000
"""The largest number of records without a key that :func:`check_records` lists."""
LATEST_RECORDS_MAX: Final = 1500
"""The number of records in the largest batch that :func:`latest_records` reads: 4 ms in Python."""
_HASH_BYTES: Final = 16
_MIN_RECORD: Final = 7
"""Bytes of length, attributes, two deltas, key length, value length and header count."""
_CHUNK: Final = 256
"""The number of records whose fields are in memory at once, because the fields need more memory
than the record.
"""
_MAX_INT64: Final = (1 << 63) - 1
_MIN_INT64: Final = -(1 << 63)
_MAX_BASE_OFFSET: Final = _MAX_INT64 - (1 << 32) + 1
_NOT_PLAIN: Final = CODEC_MASK | TRANSACTIONAL | CONTROL
_TOO_LONG: Final = "a variable-length number is too long"
_BEYOND: Final = "a record goes beyond its batch"
_MISFIT: Final = "a record's length does not fit its fields"
_ZIGZAG: Final = tuple((byte >> 1) ^ -(byte & 1) for byte in range(128))

_Fields = tuple[int, int, int, int, int, int, int, int]
"""A record: position, end, timestamp delta, offset delta, and the key's and the value's position
and size."""


class OffsetMap:
    """The largest offset of each key: a flat hash table of a fixed size.

    Clients choose the keys, so the hash is keyed with random bytes: no client can construct two
    keys with the same hash, or many keys with the same slot. A new key in a full map raises
    OverflowError.
    """

    __slots__ = ("_count", "_digests", "_new_hash", "_offsets", "_slots", "capacity")

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        from functools import partial  # imported here, because few processes create a map
        from hashlib import blake2b
        from secrets import token_bytes

        slots = memory_bytes // SLOT_BYTES
        capacity = min(int(slots * load_factor), slots - 1) if 0.0 < load_factor <= 1.0 else 0
        if capacity < 1:
            raise ValueError(f"{memory_bytes} bytes and a load of {load_factor} hold no key")
        self.capacity = capacity
        """The largest number of keys."""
        self._slots = slots
        self._new_hash = partial(blake2b, digest_size=_HASH_BYTES, key=token_bytes(_HASH_BYTES))
        self._digests = bytearray(slots * _HASH_BYTES)
        self._offsets = memoryview(bytearray(slots * 8)).cast("q")  # ~offset; 0: the slot is free
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, key: Buffer, offset: int) -> None:
        """Map a key to an offset, unless the key already has a larger one."""
        if not 0 <= offset <= _MAX_INT64:
            raise ValueError("an offset is out of range")
        digest, slot = self._find(key)
        mapped = self._offsets[slot]
        if mapped == 0:
            if self._count == self.capacity:
                raise OverflowError("the map is full")
            self._count += 1
            self._digests[slot * _HASH_BYTES : (slot + 1) * _HASH_BYTES] = digest
        if mapped == 0 or ~mapped < offset:
            self._offsets[slot] = ~offset

    def get(self, key: Buffer) -> int:
        """Return the offset of a key; -1 if it has none."""
        return ~self._offsets[slot] if self._offsets[slot := self._find(key)[1]] else -1

    def put_records(self, payload: Buffer, count: int, base_offset: int, first_offset: int) -> bool:
        """Map each record that has a key and an offset of at least ``first_offset``.

        Returns False if the map is full before the last record; the records before that point stay
        mapped.
        """
        data = bytes(payload)
        for chunk in _walk(data, count):
            for _, _, _, offset_delta, key_at, key_size, _, _ in chunk:
                offset = base_offset + offset_delta
                if key_size < 0 or offset < first_offset:
                    continue
                if not 0 <= offset <= _MAX_INT64:
                    raise BadRecords("an offset is out of range")
                if self._count == self.capacity:
                    return False
                self.put(data[key_at : key_at + key_size], offset)
        return True

    def _find(self, key: Buffer) -> tuple[bytes, int]:
        """Return a key's hash and its slot, or the free slot where the key belongs."""
        digest = self._new_hash(key).digest()
        digests, offsets, slots = self._digests, self._offsets, self._slots
        slot = int.from_bytes(digest[:8], "little") % slots
        while offsets[slot]:
            at = slot * _HASH_BYTES
            if digests[at : at + _HASH_BYTES] == digest:
                break
            slot = slot + 1 if slot + 1 < slots else 0
        return digest, slot


def check_records(payload: Buffer, count: int, *, keys: bool) -> CheckedRecords:
    """Check the structure of a payload of ``count`` records; raises BadRecords.

    With ``keys`` the result also lists the records without a key.
    """
    keyless: list[int] = []
    index, are_consecutive = 0, True
    min_delta, max_delta = _MAX_INT64, _MIN_INT64
    for chunk in _walk(bytes(payload), count):
        for _, _, delta, offset_delta, _, key_size, _, _ in chunk:
            if offset_delta != index:
                are_consecutive = False
            if delta < min_delta:
                min_delta = delta
            if delta > max_delta:
                max_delta = delta
            if key_size < 0 and keys and len(keyless) < KEYLESS_MAX:
                keyless.append(index)
            index += 1
    if not index:
        min_delta = max_delta = 0
    return CheckedRecords(keyless, are_consecutive, min_delta, max_delta)


def find_retained(
    payload: Buffer,
    count: int,
    base_offset: int,
    offsets: OffsetMap,
    latest: int,
    keep_tombstones: bool,
) -> Retained:
    """Return which records compaction keeps, by the newest offset of each key.

    A record above ``latest``, the last mapped offset, is kept. Any other record is kept only if it
    has a key and is the newest record with that key; if it has no value, ``keep_tombstones`` must
    be true as well.
    """
    data = bytes(payload)
    ranges: list[tuple[int, int]] = []
    record_count = keyless_count = 0
    has_tombstones, first_delta, max_delta = False, 0, _MIN_INT64
    start = end = -1  # The range being built.
    for chunk in _walk(data, count):
        for at, following, delta, offset_delta, key_at, key_size, _, value_size in chunk:
            offset = base_offset + offset_delta
            if offset <= latest:
                if key_size < 0:
                    keyless_count += 1
                    continue
                if value_size < 0 and not keep_tombstones:
                    continue
                if offset < offsets.get(data[key_at : key_at + key_size]):
                    continue
            if not record_count:
                first_delta = delta
            record_count += 1
            has_tombstones = has_tombstones or value_size < 0
            max_delta = max(max_delta, delta)
            if at != end:
                if end >= 0:
                    ranges.append((start, end))
                start = at
            end = following
    if end >= 0:
        ranges.append((start, end))
    max_delta = max_delta if record_count else 0
    return Retained(ranges, record_count, keyless_count, has_tombstones, first_delta, max_delta)


def latest_records(
    buf: Buffer, pos: int, offset: int, latest: dict[bytes, bytes | None], limit: int
) -> tuple[int, int]:
    """Put the last value of each key of the plain batches from ``pos`` onwards into ``latest``.

    ``latest`` is ordered by the last write. Batches below ``offset`` are skipped. The walk ends
    after ``limit`` bytes, or before a batch that is compressed, transactional, a control batch, of
    an old format, large, incomplete or damaged, or that has a record without a key. The first
    records of such a batch may be in ``latest``. Returns the position and the offset after the
    walk.
    """
    begin = pos
    while pos - begin < limit and len(buf) - pos >= HEADER_SIZE:
        header = parse(buf, pos)
        if (
            header.magic != 2
            or header.attributes & _NOT_PLAIN
            or not HEADER_SIZE <= header.size <= len(buf) - pos
            or header.record_count > LATEST_RECORDS_MAX
            or not 0 <= header.base_offset <= _MAX_BASE_OFFSET
            or header.last_offset_delta < 0
        ):
            break
        if header.next_offset > offset:
            data = bytes(memoryview(buf)[pos + HEADER_SIZE : pos + header.size])
            if not _take_batch(data, header.record_count, latest):
                break
            offset = header.next_offset
        pos += header.size
    return pos, offset


def _take_batch(data: bytes, count: int, latest: dict[bytes, bytes | None]) -> bool:
    try:
        for chunk in _walk(data, count):
            if any(key_size < 0 for *_, key_size, _, _ in chunk):
                return False
            for *_, key_at, key_size, value_at, value_size in chunk:
                key = data[key_at : key_at + key_size]
                latest.pop(key, None)
                latest[key] = None if value_size < 0 else data[value_at : value_at + value_size]
    except BadRecords:
        return False
    return True


def rewrite(payload: Buffer, ranges: Sequence[tuple[int, int]], timestamp_shift: int) -> bytes:
    """Return the records in these byte ranges, with each timestamp delta increased by the shift.

    The ranges are those of :func:`find_retained`: ascending, and of whole records.
    """
    data = bytes(payload)
    previous = 0
    for start, end in ranges:
        if not previous <= start <= end <= len(data):
            raise BadRecords(f"a range from {start} to {end} in {len(data)} bytes")
        previous = end
    if not timestamp_shift:
        return b"".join([data[start:end] for start, end in ranges])
    out = bytearray()
    for pos, end in ranges:
        while pos < end:
            pos = _shift_record(data, pos, end, timestamp_shift, out)
    return bytes(out)


def _shift_record(data: bytes, pos: int, limit: int, shift: int, out: bytearray) -> int:
    """Append a record with a shifted timestamp delta; return the position after it."""
    try:
        length, at = _varint(data, pos, 5)
        if length <= 0 or length > limit - at:
            raise BadRecords(f"a record of {length} bytes with {limit - at} left")
        end = at + length
        delta, rest = _varint(data, at + 1, 10)
    except IndexError:
        raise BadRecords(_BEYOND) from None
    delta += shift
    if rest > end:
        raise BadRecords(_MISFIT)
    if not _MIN_INT64 <= delta <= _MAX_INT64:
        raise BadRecords("a timestamp delta is out of range")
    encoded = _encode(delta)
    out += _encode(1 + len(encoded) + end - rest)
    out.append(data[at])
    out += encoded
    out += data[rest:end]
    return end


def _walk(data: bytes, count: int) -> Iterator[list[_Fields]]:
    """Yield the fields of all records, in lists of at most :data:`_CHUNK`."""
    if count < 0 or count * _MIN_RECORD > len(data):
        raise BadRecords(f"{count} records in {len(data)} bytes")
    pos = 0
    while count:
        chunk: list[_Fields] = []
        try:
            pos = _walk_chunk(data, pos, min(count, _CHUNK), chunk)
        except IndexError:
            raise BadRecords(_BEYOND) from None
        count -= len(chunk)
        yield chunk
    if pos != len(data):
        raise BadRecords(f"{len(data) - pos} bytes behind the last record")


def _walk_chunk(data: bytes, pos: int, count: int, chunk: list[_Fields]) -> int:
    """Append the fields of ``count`` records; return the position after them.

    Raises IndexError for a number that would lie beyond the data.
    """
    size, zigzag, varint, append = len(data), _ZIGZAG, _varint, chunk.append
    for _ in range(count):
        start = pos
        if (byte := data[pos]) < 0x80:
            length, pos = zigzag[byte], pos + 1
        else:
            length, pos = varint(data, pos, 5)
        end = pos + length
        if length <= 0 or end > size:
            raise BadRecords(f"a record of {length} bytes with {size - pos} left")
        if (byte := data[pos + 1]) < 0x80:
            delta, pos = zigzag[byte], pos + 2
        else:
            delta, pos = varint(data, pos + 1, 10)
        if (byte := data[pos]) < 0x80:
            offset_delta, pos = zigzag[byte], pos + 1
        else:
            offset_delta, pos = varint(data, pos, 5)
        if (byte := data[pos]) < 0x80:
            key_size, key_at = zigzag[byte], pos + 1
        else:
            key_size, key_at = varint(data, pos, 5)
        pos = key_at + key_size if key_size > 0 else key_at
        if (byte := data[pos]) < 0x80:
            value_size, value_at = zigzag[byte], pos + 1
        else:
            value_size, value_at = varint(data, pos, 5)
        pos = value_at + value_size if value_size > 0 else value_at
        pos = pos + 1 if data[pos] == 0 else _skip_headers(data, pos)
        if pos != end:
            raise BadRecords(_MISFIT)
        append((start, end, delta, offset_delta, key_at, key_size, value_at, value_size))
    return pos


def _skip_headers(data: bytes, pos: int) -> int:
    """Return the position after a record's headers."""
    count, pos = _varint(data, pos, 5)
    if count < 0:
        raise BadRecords(f"a record with {count} headers")
    for _ in range(count):
        size, pos = _varint(data, pos, 5)
        if size < 0:
            raise BadRecords("a header without a key")
        pos += size
        size, pos = _varint(data, pos, 5)
        pos += max(size, 0)
    return pos


def _varint(data: bytes, pos: int, bytes_max: int) -> tuple[int, int]:
    """Return a varint of at most ``bytes_max`` (5 or 10) bytes, and the position after it."""
    if (byte := data[pos]) < 0x80:
        return _ZIGZAG[byte], pos + 1
    if (following := data[pos + 1]) < 0x80:
        result = byte & 0x7F | following << 7
        return (result >> 1) ^ -(result & 1), pos + 2
    result, shift, end = byte & 0x7F | (following & 0x7F) << 7, 14, pos + bytes_max
    pos += 2
    while pos < end:
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >> (32 if bytes_max == 5 else 64):
                break
            return (result >> 1) ^ -(result & 1), pos
        shift += 7
    raise BadRecords(_TOO_LONG)


def _encode(value: int) -> bytes:
    value = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
