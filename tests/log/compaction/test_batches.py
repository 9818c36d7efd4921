"""The batches that a pass writes: copies, rebuilt ones, tombstones, empty ones: invariant 87."""

import pytest

from kwire.log.compaction.clean import clean
from kwire.log.config import LogConfig
from kwire.records import compression
from kwire.records.build import New, batch, rebuild_empty, stamp
from kwire.records.header import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    crc_ok,
    parse,
)
from kwire.records.iterate import records
from tests.support.log.compaction import DAY_MS, NOW_MS, MadeLog, producer, transaction

CODECS = pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)


def with_append_time(data: bytes, append_time_ms: int) -> bytes:
    """Return a batch as a broker with LogAppendTime stores it."""
    base_offset = parse(data).base_offset
    front = stamp(data, base_offset=base_offset, leader_epoch=0, append_time_ms=append_time_ms)
    return front + data[len(front) :]


@CODECS
def test_batch_that_loses_nothing_is_copied_byte_for_byte(codec: int) -> None:
    log = MadeLog()
    entries = [New(b"a", b"x" * 100, ((b"h", None), (b"i", b"2"))), New(b"b", b"y" * 100)]
    data = batch(entries, timestamp_ms=NOW_MS, compression=codec, leader_epoch=4)
    log.add(data)
    log.roll()
    log.clean()
    assert [b.data for b in log.batches()] == [data]


@CODECS
def test_batch_that_loses_records_keeps_everything_else(codec: int) -> None:
    log = MadeLog()
    log.skip(20)
    log.roll()
    times = [NOW_MS - 100, NOW_MS - 10, NOW_MS - 50, NOW_MS - 5]
    entries = [
        New(key, value, ((b"h", b"1"), (b"n", None)), time)
        for (key, value), time in zip(
            [(b"a", b"old"), (b"b", b"1" * 200), (b"c", b"1"), (b"a", b"older")], times, strict=True
        )
    ]
    data = batch(
        entries,
        timestamp_ms=0,
        base_offset=20,
        leader_epoch=3,
        compression=codec,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    log.add(data)
    log.put((b"a", b"new"), **transaction(7, 2, 2))
    log.mark(7, commit=True, epoch=2)
    log.roll()
    log.clean()
    before, (after, *_) = parse(data), log.batches()
    assert after.header._replace(length=0, crc=0, record_count=4) == before._replace(
        length=0, crc=0, base_timestamp=NOW_MS - 10, max_timestamp=NOW_MS - 10
    )
    assert crc_ok(after.data, 0, after.header)
    assert after.header.record_count == 2
    assert after.records == list(records(data, 0, before))[1:3]
    assert after.header.last_sequence == before.last_sequence == 1


def test_largest_timestamp_of_a_rebuilt_batch_is_that_of_the_records_that_stay() -> None:
    log = MadeLog()
    times = [NOW_MS - 30, NOW_MS - 10, NOW_MS - 20]
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), timestamps=times)
    log.put((b"b", b"2"), timestamps=[NOW_MS - 60])
    log.roll()
    log.clean()
    first, second = log.batches()
    assert (first.header.base_timestamp, first.header.max_timestamp) == (NOW_MS - 30, NOW_MS - 20)
    assert [r.timestamp for r in first.records] == [NOW_MS - 30, NOW_MS - 20]
    assert second.header.max_timestamp == NOW_MS - 60


def test_records_without_a_timestamp_stay_without_one() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", None), timestamps=[NOW_MS, -1, -1])
    log.put((b"a", b"2"), timestamps=[-1])
    log.roll()
    log.clean()
    first, _ = log.batches()
    assert [r.timestamp for r in first.records] == [-1, -1]
    assert first.header.max_timestamp == NO_TIMESTAMP


@pytest.mark.parametrize("value", [b"1", None], ids=["value", "tombstone"])
def test_log_append_time_stays(value: bytes | None) -> None:
    log = MadeLog()
    times = [NOW_MS - 30, NOW_MS - 10, NOW_MS - 20]
    entries = [New(k, value, (), t) for k, t in zip([b"a", b"b", b"c"], times, strict=True)]
    log.add(with_append_time(batch(entries, timestamp_ms=0), NOW_MS - 5))
    log.put((b"b", b"2"))
    log.roll()
    log.clean()
    first = log.batches()[0]
    assert first.header.attributes & LOG_APPEND_TIME
    assert first.header.max_timestamp == NOW_MS - 5
    assert [(r.key, r.timestamp) for r in first.records] == [
        (b"a", NOW_MS - 5),
        (b"c", NOW_MS - 5),
    ]


def test_rebuilt_batch_above_the_largest_message_is_kept_with_a_warning(caplog) -> None:
    """Setting the delete horizon makes the timestamp deltas longer."""
    log = MadeLog(config=LogConfig(max_message_bytes=100))
    log.put(*((b"%d" % n, None) for n in range(10)), timestamps=[NOW_MS - 20 * DAY_MS] * 10)
    log.roll()
    log.clean()
    assert len(log.pairs()) == 10
    assert "max.message.bytes" in caplog.text


# Tombstones ----------------------------------------------------------------------------------
def test_first_pass_sets_the_delete_horizon_of_a_batch_with_a_tombstone() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", None), timestamps=[NOW_MS - 20, NOW_MS - 10])
    log.roll()
    log.clean()
    (only,) = log.batches()
    assert only.header.attributes & DELETE_HORIZON
    assert only.header.delete_horizon_ms == only.header.base_timestamp == NOW_MS + DAY_MS
    assert [r.timestamp for r in only.records] == [NOW_MS - 20, NOW_MS - 10]
    assert only.header.max_timestamp == NOW_MS - 10
    assert crc_ok(only.data, 0, only.header)


def test_delete_retention_of_the_topic_sets_the_horizon() -> None:
    log = MadeLog(config=LogConfig(delete_retention_ms=7))
    log.put((b"b", None))
    log.roll()
    log.clean()
    assert log.batches()[0].header.delete_horizon_ms == NOW_MS + 7


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**63 - NOW_MS])
def test_retention_beyond_all_timestamps_keeps_tombstones_for_ever(retention_ms: int) -> None:
    """The sum of both overflows, as in Apache Kafka, to a horizon that does not count."""
    log = MadeLog(config=LogConfig(delete_retention_ms=retention_ms))
    log.put((b"a", b"1"), (b"b", None), timestamps=[NOW_MS, -1])
    log.put((b"a", b"2"))
    log.roll()
    for day in range(3):
        log.clean(now_ms=NOW_MS + day * DAY_MS)
    assert log.pairs() == [(1, b"b", None), (2, b"a", b"2")]
    assert log.batches()[0].header.delete_horizon_ms is None


def test_latest_possible_horizon_keeps_the_timestamps() -> None:
    log = MadeLog(config=LogConfig(delete_retention_ms=2**63 - 1 - NOW_MS))
    log.put((b"a", None), (b"b", b"1"), timestamps=[-1, NOW_MS])
    log.roll()
    log.clean()
    (only,) = log.batches()
    assert only.header.delete_horizon_ms == 2**63 - 1
    assert [r.timestamp for r in only.records] == [-1, NOW_MS]


@pytest.mark.parametrize(
    ("elapsed_ms", "remains"), [(0, True), (DAY_MS - 1, True), (DAY_MS, False), (DAY_MS + 1, False)]
)
def test_tombstone_stays_until_its_horizon(elapsed_ms: int, remains: bool) -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", None))
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    log.clean(now_ms=NOW_MS + elapsed_ms)
    assert ((1, b"b", None) in log.pairs()) == remains
    assert (0, b"a", b"1") in log.pairs()


def test_tombstone_that_is_replaced_goes_at_once() -> None:
    log = MadeLog()
    log.put((b"b", None))
    log.put((b"b", b"2"))
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"b", b"2")]


def test_tombstone_removes_older_values() -> None:
    log = MadeLog()
    log.put((b"b", b"1"))
    log.put((b"b", None))
    log.roll()
    log.clean()
    assert log.pairs() == [(1, b"b", None)]


def test_later_rebuilds_keep_the_horizon() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", None), (b"c", b"1"), timestamps=[NOW_MS - n for n in range(3)])
    log.roll()
    log.clean()
    log.put((b"a", b"2"))
    log.roll()
    log.clean(first_dirty=3, now_ms=NOW_MS + 1000)
    first = log.batches()[0]
    assert first.pairs == [(1, b"b", None), (2, b"c", b"1")]
    assert first.header.delete_horizon_ms == NOW_MS + DAY_MS
    assert [r.timestamp for r in first.records] == [NOW_MS - 1, NOW_MS - 2]
    assert first.header.max_timestamp == NOW_MS - 1


def test_batch_without_tombstones_gets_no_horizon() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    log.clean()
    assert [b.header.delete_horizon_ms for b in log.batches()] == [None, None]


# Empty batches -------------------------------------------------------------------------------
def test_last_batch_of_an_active_producer_stays_without_records() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **producer(7))
    log.put((b"a", b"2"), (b"b", b"1"), compression=compression.GZIP, **producer(7, 1))
    log.put((b"a", b"3"), (b"b", b"2"), **producer(8))
    log.roll()
    log.clean(active_producers={7: (0, 2)})
    emptied, _ = log.batches()
    header = emptied.header
    assert (header.base_offset, header.last_offset, header.record_count) == (1, 2, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 1)
    assert header.last_sequence == 2
    assert header.size == HEADER_SIZE
    assert header.compression == compression.NONE
    assert header.base_timestamp == NO_TIMESTAMP
    assert header.max_timestamp == NOW_MS - DAY_MS
    assert crc_ok(emptied.data, 0, header)


def test_batch_of_a_producer_that_is_not_active_goes() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **producer(7))
    log.put((b"a", b"2"), **producer(8))
    log.roll()
    log.clean(active_producers={8: (0, 1)})
    assert [b.header.producer_id for b in log.batches()] == [8]


def test_emptied_batch_goes_once_its_producer_is_not_active() -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **producer(7))
    log.put((b"a", b"2"))
    log.roll()
    log.clean(active_producers={7: (0, 0)})
    assert [b.header.record_count for b in log.batches()] == [0, 1]
    log.clean(active_producers={7: (0, 0)})
    assert [b.header.record_count for b in log.batches()] == [0, 1]
    log.clean()
    assert [b.header.record_count for b in log.batches()] == [1]


def test_last_batch_of_the_pass_stays_without_records() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((None, b"1"), (None, b"2"))
    log.roll()
    log.clean()
    header = log.batches()[-1].header
    assert (header.base_offset, header.next_offset, header.record_count) == (1, 3, 0)


def test_emptied_batch_loses_its_horizon_but_keeps_the_type_of_its_timestamps() -> None:
    entries = [New(b"b", None)]
    log = MadeLog()
    log.add(with_append_time(batch(entries, timestamp_ms=NOW_MS, compression=1), NOW_MS + 3))
    log.roll()
    log.clean()
    log.clean(now_ms=NOW_MS + DAY_MS)
    header = log.batches()[0].header
    assert header.record_count == 0
    assert header.attributes == LOG_APPEND_TIME
    assert header.max_timestamp == NOW_MS + 3


def test_active_producers_are_those_of_the_group() -> None:
    """A producer's last batch may have moved on since the pass began."""
    log = MadeLog(config=LogConfig(segment_bytes=1))
    log.put((b"a", b"1"), **producer(7))
    log.roll()
    log.put((b"a", b"2"), **producer(8))
    log.roll()
    log.put((b"a", b"3"))
    log.roll()
    generator = clean(log.disk, log.job(active_producers={7: (0, 0), 8: (0, 1)}), lambda size: None)
    assert next(generator).size == HEADER_SIZE
    assert generator.send({7: (0, 0)}).size == 0


# Repeated passes -----------------------------------------------------------------------------
@pytest.mark.parametrize("aborts", [False, True])
def test_repeated_pass_at_the_same_time_changes_nothing(aborts: bool) -> None:
    """The pass after the one that removed aborted data sets the horizon of its marker."""
    log = MadeLog()
    log.put((b"a", b"1"), (b"b", None), (None, b"x"), compression=compression.ZSTD)
    log.put((b"a", b"2"), **producer(5))
    log.put((b"c", b"1"), **transaction(7))
    log.mark(7, commit=not aborts)
    log.put((b"d", b"2"), **transaction(8))
    log.mark(8, commit=True)
    log.put((b"a", None))
    log.roll()
    for _ in range(1 + aborts):
        log.clean(active_producers={5: (0, 3)})
    once = log.files()
    log.clean(active_producers={5: (0, 3)})
    log.clean(active_producers={5: (0, 3)}, first_dirty=log.end_offset)
    assert log.files() == once


def test_batch_that_an_earlier_pass_emptied_is_copied_again() -> None:
    log = MadeLog()
    header = parse(batch([New(b"k", b"v")] * 3, timestamp_ms=NOW_MS, **producer(7)))
    log.add(rebuild_empty(header))
    log.roll()
    log.clean()
    assert [b.data for b in log.batches()] == [rebuild_empty(header)]
