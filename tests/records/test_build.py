"""Batches that are built can be read, and stamping changes only the fields that it has to."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.records import build, compression, header, iterate
from kwire.records.build import New

NOW = 1_700_000_000_000
maybe = st.none() | st.binary(max_size=20)
new_records = st.builds(
    New,
    maybe,
    maybe,
    st.lists(st.tuples(st.binary(max_size=5), maybe), max_size=3).map(tuple),
    st.none() | st.integers(-1, 1 << 45),
)


@settings(max_examples=50)
@given(
    st.lists(new_records, min_size=1, max_size=8),
    st.sampled_from(range(5)),
    st.integers(0, 1 << 60),
    st.sampled_from([-1, 0, 5, 2147483646, 2147483647]),
)
def test_built_batch_is_read_as_given(
    records: list[New], codec: int, base_offset: int, sequence: int
):
    batch = build.batch(
        records,
        timestamp_ms=NOW,
        base_offset=base_offset,
        leader_epoch=3,
        compression=codec,
        producer_id=9,
        producer_epoch=1,
        base_sequence=sequence,
    )
    head = header.parse(batch)
    assert head.size == len(batch)
    assert header.crc_ok(batch, 0, head)
    read_records = list(iterate.records(batch, 0, head))
    times = [NOW if r.timestamp is None else r.timestamp for r in records]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read_records] == [
        (base_offset + n, time, r.key, r.value, tuple(r.headers))
        for n, (time, r) in enumerate(zip(times, records, strict=True))
    ]
    assert head.max_timestamp == max(times)
    assert read_records[-1].sequence == head.last_sequence


@pytest.mark.parametrize(
    ("size", "length_size"), [(63, 1), (64, 2), (8191, 2), (8192, 3), (1 << 20, 4)]
)
def test_lengths_take_as_few_bytes_as_possible(size: int, length_size: int) -> None:
    value = bytes(size)
    batch = build.batch([New(None, value)], timestamp_ms=NOW)
    (record,) = iterate.records(batch, 0, header.parse(batch))
    assert record.value == value
    content = 5 + length_size + size  # Attributes, two deltas, no key, and no headers.
    assert len(build.encode_record(0, 0, None, value)) == content + len_of_varint(content)


@pytest.mark.parametrize("delta", [-1, -64, -65, -8192, -8193, 1 << 40])
def test_time_before_that_of_the_batch_is_read_as_given(delta: int) -> None:
    batch = build.batch([New(None, b""), New(None, b"", timestamp=NOW + delta)], timestamp_ms=NOW)
    read = iterate.records(batch, 0, header.parse(batch))
    assert [record.timestamp for record in read] == [NOW, NOW + delta]
    size, usual = (len(build.encode_record(d, 0, None, None)) for d in (delta, 0))
    assert size == usual - 1 + len_of_varint(delta)


def len_of_varint(value: int) -> int:
    """Return how many groups of seven bits a number has in the zigzag encoding."""
    zigzag = 2 * value if value >= 0 else -2 * value - 1
    return max(1, -(-zigzag.bit_length() // 7))


BATCH = build.batch([New(b"k", b"v"), New(b"k", b"w")], timestamp_ms=NOW)


def replace_front(batch: bytes, front: bytes) -> bytes:
    return front + batch[len(front) :]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=70), st.integers(0, 1 << 60))
def test_payload_of_encoded_records_makes_the_same_batch(values: list[bytes], base_offset: int):
    payload = build.Payload(values[:1])
    for value in values[1:]:
        payload.add(value)
    place: dict[str, Any] = {"timestamp_ms": NOW, "base_offset": base_offset, "leader_epoch": 7}
    assert len(payload) == len(values)
    assert payload.batch(**place) == build.batch([New(None, value) for value in values], **place)


def test_stamp_changes_only_offset_and_leader_epoch():
    head = build.stamp(BATCH, base_offset=77, leader_epoch=5)
    assert len(head) == 16
    whole = replace_front(BATCH, head)
    stamped_header = header.parse(whole)
    stamped = (stamped_header.base_offset, stamped_header.leader_epoch, stamped_header.last_offset)
    assert stamped == (77, 5, 78)
    assert whole[16:] == BATCH[16:]
    assert header.crc_ok(whole, 0, stamped_header)


def test_stamp_sets_the_append_time():
    front = build.stamp(BATCH, base_offset=77, leader_epoch=5, append_time_ms=NOW + 5)
    whole = replace_front(BATCH, front)
    stamped_header = header.parse(whole)
    assert stamped_header.is_log_append_time
    assert header.crc_ok(whole, 0, stamped_header)
    assert [r.timestamp for r in iterate.records(whole, 0, stamped_header)] == [NOW + 5, NOW + 5]
    assert stamped_header.base_timestamp == NOW


def test_stamp_removes_append_time_flag_of_a_client():
    front = build.stamp(BATCH, base_offset=0, leader_epoch=-1, append_time_ms=NOW)
    produced = replace_front(BATCH, front)
    whole = replace_front(produced, build.stamp(produced, base_offset=0, leader_epoch=-1))
    assert whole == replace_front(BATCH, build.stamp(BATCH, base_offset=0, leader_epoch=-1))


@pytest.mark.parametrize("codec", range(5))
def test_recompressed_batch_has_the_same_records(codec: int):
    again = build.recompress(BATCH, header.parse(BATCH), codec, limit=1 << 20)
    head = header.parse(again)
    assert head.compression == codec
    assert header.crc_ok(again, 0, head)
    assert list(iterate.records(again, 0, head)) == list(
        iterate.records(BATCH, 0, header.parse(BATCH))
    )


def test_emptied_batch_has_its_producers_last_sequence():
    batch = build.batch(
        [New(b"k", b"v")] * 3,
        timestamp_ms=NOW,
        producer_id=4,
        producer_epoch=0,
        base_sequence=10,
        compression=compression.GZIP,
    )
    head = header.parse(build.rebuild_empty(header.parse(batch)))
    assert (head.record_count, head.size, head.last_sequence, head.last_offset) == (0, 61, 12, 2)
    assert head.compression == compression.NONE


def test_headers_stop_at_a_cut_batch():
    buf = BATCH + BATCH + BATCH[:-1]
    assert [pos for pos, _ in header.headers(buf)] == [0, len(BATCH)]


@pytest.mark.parametrize("append_time", [False, True])
def test_times_yields_the_timestamps_of_the_records(append_time: bool) -> None:
    batch = build.batch(
        [build.New(b"k", b"v" * n, ((b"h", None),) * n, NOW + 3 * n) for n in range(70)],
        timestamp_ms=NOW,
        base_offset=100,
    )
    if append_time:
        front = build.stamp(batch, base_offset=100, leader_epoch=0, append_time_ms=NOW + 9)
        batch = bytes(front) + batch[len(front) :]
    head = header.parse(batch)
    expected = [(r.offset, r.timestamp) for r in iterate.records(batch, 0, head)]
    assert list(iterate.times(batch[header.HEADER_SIZE :], head)) == expected
    for end in range(header.HEADER_SIZE, len(batch)):
        with pytest.raises(iterate.BadRecords):
            list(iterate.times(batch[header.HEADER_SIZE : end], head))
