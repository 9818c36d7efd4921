"""The walks over records, in both implementations: what they find, keep and refuse."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.records import build, header, iterate
from kwire.records.build import New, encode_record
from kwire.records.iterate import BadRecords
from kwire.records.walked import CheckedRecords, Retained
from tests.support.records.vectors import lines
from tests.support.speedups.implementations import implementation

NAMES = ("python", "c")
MEGABYTE = 1 << 20
maybe = st.none() | st.binary(max_size=20)
new_records = st.lists(
    st.builds(
        New,
        maybe,
        maybe,
        st.lists(st.tuples(st.binary(max_size=5), maybe), max_size=3).map(tuple),
        st.integers(-1 << 62, 1 << 62),
    ),
    max_size=40,
)


@pytest.fixture(params=NAMES)
def code(request: pytest.FixtureRequest) -> ModuleType:
    return implementation(request.param)


def encode(records: list[New]) -> bytes:
    """Return the payload of these records; a record's timestamp is its delta."""
    return b"".join(
        encode_record(r.timestamp or 0, i, r.key, r.value, r.headers) for i, r in enumerate(records)
    )


def decode(payload: bytes, count: int) -> list[iterate.Record]:
    head = header.parse(build.batch([New(None, None)], timestamp_ms=0))
    return list(iterate.unpacked_records(payload, head._replace(record_count=count)))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50)
@given(new_records)
def test_good_records_pass(name: str, records: list[New]):
    code = implementation(name)
    deltas = [r.timestamp or 0 for r in records]
    keyless = [i for i, r in enumerate(records) if r.key is None]
    result = code.check_records(encode(records), len(records), keys=True)
    assert result == CheckedRecords(keyless, True, min(deltas, default=0), max(deltas, default=0))
    assert code.check_records(encode(records), len(records), keys=False).keyless == []


def test_order_of_offsets_is_reported(code: ModuleType):
    for deltas in ([0, 0], [1, 0], [-1], [0, 2]):
        payload = b"".join(encode_record(0, delta, b"k", b"v") for delta in deltas)
        result = code.check_records(payload, len(deltas), keys=True)
        assert not result.are_offsets_consecutive


def test_records_without_a_key_are_named_up_to_a_limit(code: ModuleType):
    payload = b"".join(encode_record(0, i, None, b"") for i in range(1500))
    assert code.check_records(payload, 1500, keys=True).keyless == list(range(1000))


GOOD = encode_record(0, 0, b"key", b"value", ((b"h", b"1"), (b"i", None)))
OVERLONG = b"\x80\x80\x80\x80\x80\x00"


def record(body: bytes) -> bytes:
    return bytes([len(body) * 2]) + body


@pytest.mark.parametrize(
    ("payload", "count", "message"),
    [
        (GOOD, 2, "goes beyond its batch"),
        (GOOD, -1, "-1 records in"),
        (GOOD, 1 << 31, "records in"),
        (GOOD + GOOD, 1, "bytes behind the last record"),
        (GOOD, 0, "bytes behind the last record"),
        (b"\x00" + bytes(7), 1, "a record of 0 bytes with 7 left"),
        (b"\x01" + bytes(7), 1, "a record of -1 bytes with 7 left"),
        (b"\x20" + bytes(7), 1, "a record of 16 bytes with 7 left"),
        (OVERLONG + bytes(7), 1, "number is too long"),
        (b"\xff\xff\xff\xff\x1f" + bytes(7), 1, "number is too long"),  # 33 bits
        (record(b"\0" + b"\xff" * 9 + b"\x02\0\1\1\0"), 1, "number is too long"),  # 65 bits
        (record(b"\0\0\0\x10\1\0\0"), 1, "goes beyond its batch"),  # key of 8 bytes
        (record(b"\0\0\0\1\x10\0\0"), 1, "goes beyond its batch"),  # value of 8 bytes
        (record(b"\0\0\0\1\1\1"), 1, "a record with -1 headers"),
        (record(b"\0\0\0\1\1\x7e"), 1, "goes beyond its batch"),  # 63 headers
        (record(b"\0\0\0\1\1\2\1\1"), 1, "a header without a key"),
        (record(b"\0\0\0\1\1\0\0"), 1, "length does not fit"),  # a byte behind its fields
        (record(b"\0\0\0\1\1") + b"\0", 1, "length does not fit"),  # its fields go on behind it
        (b"", 1, "1 records in 0 bytes"),
        (bytes([200]) * 7, 1, "number is too long"),
    ],
)
def test_damage_is_refused(code: ModuleType, payload: bytes, count: int, message: str):
    offsets = code.OffsetMap(MEGABYTE, 0.9)
    for walk in (
        lambda: code.check_records(payload, count, keys=True),
        lambda: code.find_retained(payload, count, 0, offsets, 5, True),
        lambda: offsets.put_records(payload, count, 0, 0),
    ):
        with pytest.raises(BadRecords, match=message):
            walk()


@pytest.mark.parametrize(
    "payload",
    [
        record(b"\x01\0\0\1\1\0"),  # attributes without a meaning
        record(b"\0\0\0\3\5\0"),  # negative sizes are nulls, as in Apache Kafka
        record(b"\0" + b"\xff" * 9 + b"\x01\0\1\1\0"),  # the smallest timestamp delta
        record(b"\0\0\0\1\1\2\0\3"),  # an empty header key, a null header value
        record(b"\0\x80\x00\0\1\1\0"),  # a number with more bytes than it needs
    ],
)
def test_unusual_records_pass_as_in_kafka(code: ModuleType, payload: bytes):
    assert code.check_records(payload, 1, keys=False).are_offsets_consecutive


def uncompressed_cases() -> list[Any]:
    """Return the damaged batches of the vectors that only a walk over their records can judge."""
    cases = []
    for case in lines("corrupt_records.jsonl.gz"):
        buf = bytes.fromhex(case["hex"])
        if case["compression"] != "none" or len(buf) < header.HEADER_SIZE:
            continue
        head = header.parse(buf)
        if head.magic == 2 and header.HEADER_SIZE <= head.size <= len(buf):
            is_readable = header.crc_ok(buf, 0, head) and not head.compression
            if is_readable and head.record_count:
                cases.append(pytest.param(case, id=case["case"]))
    return cases


def test_vectors_have_damaged_records():
    assert len(uncompressed_cases()) > 30


@pytest.mark.parametrize("case", uncompressed_cases())
def test_payload_is_judged_as_apache_kafka_reads_it(code: ModuleType, case: dict[str, Any]):
    buf = bytes.fromhex(case["hex"])
    head = header.parse(buf)
    is_damaged = False
    try:
        code.check_records(buf[header.HEADER_SIZE : head.size], head.record_count, keys=False)
    except BadRecords:
        is_damaged = True
    assert is_damaged == (case["java_read"]["result"] == "error")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50)
@given(new_records, st.integers(0, 1 << 40), st.integers(0, 50), st.integers(-1, 50), st.booleans())
def test_newest_record_of_each_key_is_kept(
    name: str, records: list[New], base: int, first: int, latest: int, keep_tombstones: bool
):
    code = implementation(name)
    payload = encode(records)
    offsets = code.OffsetMap(MEGABYTE, 0.9)
    assert offsets.put_records(payload, len(records), base, base + first)
    newest = {r.key: base + i for i, r in enumerate(records) if r.key is not None and i >= first}
    assert len(offsets) == len(newest)
    for key, offset in newest.items():
        assert offsets.get(key) == offset
    indexes, keyless_count = [], 0
    for i, r in enumerate(records):
        if i > latest:
            indexes.append(i)
        elif r.key is None:
            keyless_count += 1
        elif base + i >= newest.get(r.key, -1) and (r.value is not None or keep_tombstones):
            indexes.append(i)
    result = code.find_retained(
        payload, len(records), base, offsets, base + latest, keep_tombstones
    )
    assert (result.record_count, result.keyless_count) == (len(indexes), keyless_count)
    assert result.has_tombstones == any(records[i].value is None for i in indexes)
    assert result.first_delta == next((records[i].timestamp or 0 for i in indexes), 0)
    assert result.max_delta == max((records[i].timestamp or 0 for i in indexes), default=0)
    parts = code.rewrite(payload, result.ranges, 0)
    whole = decode(payload, len(records))
    assert decode(parts, len(indexes)) == [whole[i] for i in indexes]
    gaps = sum(b - a > 1 for a, b in pairwise(indexes))
    assert len(result.ranges) == (gaps + 1 if indexes else 0)
    shifted = code.rewrite(payload, result.ranges, -12345678)
    expected = [whole[i]._replace(timestamp=whole[i].timestamp - 12345678) for i in indexes]
    assert decode(shifted, len(indexes)) == expected


def test_kept_records_are_those_of_the_whole_map(code: ModuleType):
    payload = encode([New(b"a", b"1"), New(b"b", b"1"), New(b"a", None), New(b"c", b"1")])
    offsets = code.OffsetMap(MEGABYTE, 0.9)
    assert offsets.put_records(payload, 4, 100, 0)
    offsets.put(b"b", 500)
    sizes = [len(encode_record(0, i, b"a", b"1")) for i in range(4)]
    first, last = sizes[0] * 2, len(payload)
    assert code.find_retained(payload, 4, 100, offsets, 500, True) == Retained(
        [(first, last)], 2, 0, True, 0, 0
    )
    assert code.find_retained(payload, 4, 100, offsets, 500, False) == Retained(
        [(last - sizes[3], last)], 1, 0, False, 0, 0
    )
    assert code.find_retained(payload, 4, 100, offsets, 99, False).record_count == 4


def test_map_keeps_the_largest_offset(code: ModuleType):
    offsets = code.OffsetMap(24 * 100, 0.9)
    assert (offsets.capacity, len(offsets), offsets.get(b"k")) == (90, 0, -1)
    for offset in (5, 3, 7, 7):
        offsets.put(b"k", offset)
    offsets.put(bytearray(b""), 0)
    offsets.put(memoryview(b"big"), (1 << 63) - 1)
    assert [offsets.get(key) for key in (b"k", b"", b"big", b"x")] == [7, 0, (1 << 63) - 1, -1]
    assert len(offsets) == 3
    for offset in (-1, 1 << 63):
        with pytest.raises((ValueError, OverflowError)):
            offsets.put(b"k", offset)


def test_full_map_maps_the_first_part_of_a_batch(code: ModuleType):
    offsets = code.OffsetMap(24 * 10, 0.5)
    payload = encode([New(b"%d" % i, b"") for i in range(8)])
    assert not offsets.put_records(payload, 8, 0, 0)
    assert [offsets.get(b"%d" % i) for i in range(8)] == [0, 1, 2, 3, 4, -1, -1, -1]
    with pytest.raises(OverflowError):
        offsets.put(b"new", 9)
    offsets.put(b"0", 9)  # a key that has its slot
    assert offsets.get(b"0") == 9
    assert offsets.put_records(encode([New(None, b"")]), 1, 50, 0)
    assert not offsets.put_records(encode([New(b"0", b"")]), 1, 50, 0)
    assert offsets.put_records(payload, 8, 0, 8)  # none of them is dirty


def test_map_finds_each_of_many_keys_at_a_high_load(code: ModuleType):
    count = 2000
    offsets = code.OffsetMap(24 * (count + 1), 1.0)
    assert offsets.capacity == count
    for i in range(count):
        offsets.put(b"key-%d" % i, i)
    assert [offsets.get(b"key-%d" % i) for i in range(count)] == list(range(count))
    assert offsets.get(b"key-x") == -1


@pytest.mark.parametrize(("memory", "load"), [(0, 0.9), (24, 0.9), (2400, 0.0), (-1, 0.9)])
def test_map_without_room_is_refused(code: ModuleType, memory: int, load: float):
    with pytest.raises(ValueError, match="hold no key"):
        code.OffsetMap(memory, load)


def test_offset_beyond_64_bits_is_damage(code: ModuleType):
    offsets = code.OffsetMap(MEGABYTE, 0.9)
    payload = encode_record(0, 1, b"k", b"v")
    with pytest.raises(BadRecords, match="an offset is out of range"):
        offsets.put_records(payload, 1, (1 << 63) - 1, 0)
    assert (
        code.find_retained(payload, 1, (1 << 63) - 1, offsets, (1 << 63) - 1, True).record_count
        == 1
    )


@pytest.mark.parametrize(
    ("ranges", "shift", "message"),
    [
        ([(0, len(GOOD) + 1)], 0, "a range from 0 to"),
        ([(-1, 3)], 0, "a range from -1 to 3"),
        ([(5, 4)], 0, "a range from 5 to 4"),
        ([(0, len(GOOD)), (0, len(GOOD))], 0, "a range from 0 to"),  # twice the payload's bytes
        ([(0, 5)], 1, "a record of"),
        ([(1, len(GOOD))], 1, "a record of"),
    ],
)
def test_ranges_that_are_not_of_records_are_refused(
    code: ModuleType, ranges: list[tuple[int, int]], shift: int, message: str
):
    with pytest.raises(BadRecords, match=message):
        code.rewrite(GOOD, ranges, shift)


def test_timestamp_delta_is_not_shifted_out_of_range(code: ModuleType):
    payload = encode_record(1, 0, b"key", b"value")
    with pytest.raises(BadRecords, match="a timestamp delta is out of range"):
        code.rewrite(payload, [(0, len(payload))], (1 << 63) - 1)


@pytest.mark.parametrize(("setting", "expected"), [("off", {"python"}), ("", {"c", "python"})])
def test_environment_chooses_the_implementation(setting: str, expected: set[str]):
    script = "from kwire import speedups; print(speedups.IMPLEMENTATION)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "KWIRE_SPEEDUPS": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() in expected


def test_map_serves_one_thread_at_a_time(code: ModuleType):
    """Calls with large payloads may run beside each other, but no map is used by two of them."""
    payload = encode([New(b"%d" % i, bytes(90)) for i in range(5000)])
    offsets = code.OffsetMap(MEGABYTE, 0.9)

    def put(_: int) -> str:
        try:
            for _ in range(20):
                assert offsets.put_records(payload, 5000, 0, 0)
        except RuntimeError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(put, range(4)))
    assert answers <= {"", "another thread uses the map"}
    assert [offsets.get(b"%d" % i) for i in range(5000)] == list(range(5000))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(new_records, st.sampled_from([0, 0, 0, 1, 16, 48])), max_size=6),
    st.integers(0, 30),
    st.integers(1, 300),
    st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)),
)
def test_latest_records_are_equal_in_both_implementations(
    written: list[tuple[list[New], int]],
    offset: int,
    limit: int,
    damage: tuple[int, int] | None,
):
    data, end = bytearray(), 0
    for records, attributes in written:
        stored = bytearray(
            build.batch(records or [New(b"k", b"v")], timestamp_ms=0, base_offset=end)
        )
        stored[header.ATTRIBUTES_POS + 1] = attributes
        end += len(records) or 1
        data += stored
    if damage is not None and damage[0] < len(data):
        data[damage[0]] = damage[1]
    ends, contents = [], []
    for name in NAMES:
        latest: dict[bytes, bytes | None] = {b"k": b"old"}
        ends.append(implementation(name).latest_records(bytes(data), 0, offset, latest, limit))
        contents.append(list(latest.items()))
    assert ends[0] == ends[1]
    assert contents[0] == contents[1]


def test_latest_records_are_ordered_by_the_last_write(code: ModuleType):
    records = [New(b"a", b"1"), New(b"b", b"2"), New(b"a", None)]
    data = build.batch(records, timestamp_ms=0, base_offset=5)
    latest: dict[bytes, bytes | None] = {}
    assert code.latest_records(data, 0, 0, latest, 1) == (len(data), 8)
    assert list(latest.items()) == [(b"b", b"2"), (b"a", None)]
    assert code.latest_records(data + data[:70], len(data), 8, latest, 1) == (len(data), 8)


def test_latest_records_leaves_large_batches_to_the_caller(code: ModuleType):
    for count, is_taken in ((1500, True), (1501, False)):
        data = build.batch([New(b"k", b"v")] * count, timestamp_ms=0, base_offset=0)
        latest: dict[bytes, bytes | None] = {}
        expected = (len(data), count) if is_taken else (0, 0)
        assert code.latest_records(data, 0, 0, latest, 1) == expected
        assert bool(latest) == is_taken
