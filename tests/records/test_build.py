"""Batches built here are read here, and stamping changes what it must and no more."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.records import build, compression, header, iterate
from kwire.records.build import New

NOW = 1_700_000_000_000
maybe = st.none() | st.binary(max_size=20)
news = st.builds(
    New,
    maybe,
    maybe,
    st.lists(st.tuples(st.binary(max_size=5), maybe), max_size=3).map(tuple),
    st.none() | st.integers(-1, 1 << 45),
)


@settings(max_examples=50)
@given(
    st.lists(news, min_size=1, max_size=8),
    st.sampled_from(range(5)),
    st.integers(0, 1 << 60),
    st.sampled_from([-1, 0, 5, 2147483646, 2147483647]),
)
def test_round_trip(records: list[New], codec: int, base_offset: int, sequence: int):
    made = build.batch(
        records,
        timestamp_ms=NOW,
        base_offset=base_offset,
        leader_epoch=3,
        compression=codec,
        producer_id=9,
        producer_epoch=1,
        base_sequence=sequence,
    )
    head = header.parse(made)
    assert head.size == len(made)
    assert header.crc_ok(made, 0, head)
    found = list(iterate.records(made, 0, head))
    times = [NOW if r.timestamp is None else r.timestamp for r in records]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found] == [
        (base_offset + n, time, r.key, r.value, tuple(r.headers))
        for n, (time, r) in enumerate(zip(times, records, strict=True))
    ]
    assert head.max_timestamp == max(times)
    assert found[-1].sequence == head.last_sequence


MADE = build.batch([New(b"k", b"v"), New(b"k", b"w")], timestamp_ms=NOW)


def stored(buf: bytes, head: bytes) -> bytes:
    return head + buf[len(head) :]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=70), st.integers(0, 1 << 60))
def test_records_encoded_beforehand_make_the_same_batch(values: list[bytes], base_offset: int):
    payload = build.Payload(values[:1])
    for value in values[1:]:
        payload.add(value)
    place: dict[str, Any] = {"timestamp_ms": NOW, "base_offset": base_offset, "leader_epoch": 7}
    assert len(payload) == len(values)
    assert payload.batch(**place) == build.batch([New(None, value) for value in values], **place)


def test_stamping_a_place_leaves_the_rest():
    head = build.stamp(MADE, base_offset=77, leader_epoch=5)
    assert len(head) == 16
    whole = stored(MADE, head)
    found = header.parse(whole)
    assert (found.base_offset, found.leader_epoch, found.last_offset) == (77, 5, 78)
    assert whole[16:] == MADE[16:]
    assert header.crc_ok(whole, 0, found)


def test_stamping_the_append_time():
    whole = stored(MADE, build.stamp(MADE, base_offset=77, leader_epoch=5, append_time_ms=NOW + 5))
    found = header.parse(whole)
    assert found.is_log_append_time
    assert header.crc_ok(whole, 0, found)
    assert [r.timestamp for r in iterate.records(whole, 0, found)] == [NOW + 5, NOW + 5]
    assert found.base_timestamp == NOW


def test_a_clients_claim_of_append_time_is_removed():
    claimed = stored(MADE, build.stamp(MADE, base_offset=0, leader_epoch=-1, append_time_ms=NOW))
    whole = stored(claimed, build.stamp(claimed, base_offset=0, leader_epoch=-1))
    assert whole == stored(MADE, build.stamp(MADE, base_offset=0, leader_epoch=-1))


@pytest.mark.parametrize("codec", range(5))
def test_recompressing_keeps_the_records(codec: int):
    again = build.recompress(MADE, header.parse(MADE), codec, limit=1 << 20)
    head = header.parse(again)
    assert head.compression == codec
    assert header.crc_ok(again, 0, head)
    assert list(iterate.records(again, 0, head)) == list(
        iterate.records(MADE, 0, header.parse(MADE))
    )


def test_an_emptied_batch_remembers_its_producer():
    made = build.batch(
        [New(b"k", b"v")] * 3,
        timestamp_ms=NOW,
        producer_id=4,
        producer_epoch=0,
        base_sequence=10,
        compression=compression.GZIP,
    )
    head = header.parse(build.rebuild(header.parse(made), []))
    assert (head.record_count, head.size, head.last_sequence, head.last_offset) == (0, 61, 12, 2)
    assert head.compression == compression.NONE


def test_headers_stop_at_a_cut_batch():
    buf = MADE + MADE + MADE[:-1]
    assert [pos for pos, _ in header.headers(buf)] == [0, len(MADE)]


@pytest.mark.parametrize("append_time", [False, True])
def test_times_are_those_of_the_records(append_time: bool) -> None:
    made = build.batch(
        [build.New(b"k", b"v" * n, ((b"h", None),) * n, NOW + 3 * n) for n in range(70)],
        timestamp_ms=NOW,
        base_offset=100,
    )
    if append_time:
        front = build.stamp(made, base_offset=100, leader_epoch=0, append_time_ms=NOW + 9)
        made = bytes(front) + made[len(front) :]
    head = header.parse(made)
    expected = [(r.offset, r.timestamp) for r in iterate.records(made, 0, head)]
    assert list(iterate.times(made[header.HEADER_SIZE :], head)) == expected
    for end in range(header.HEADER_SIZE, len(made)):
        with pytest.raises(iterate.BadRecords):
            list(iterate.times(made[header.HEADER_SIZE : end], head))
