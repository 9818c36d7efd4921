"""A partition's log, call by call."""

import errno
from typing import Any

import pytest

from kwire import errors
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.partition_log import PartitionLog, UnexpectedOffset, create
from kwire.records.control import end_txn_marker
from kwire.records.header import crc_ok, headers, parse
from kwire.simulation.disk import SimDisk
from kwire.types import TopicPartition
from tests.support.log.batches import (
    TIME_MS,
    append,
    content,
    encode,
    max_timestamp,
    offset_for_timestamp,
)


def opened(disk: SimDisk | None = None, **config: Any) -> PartitionLog:
    disk = SimDisk() if disk is None else disk
    disk.make_directory("t-0")
    made_config = LogConfig(**config)
    return create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=made_config)


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def stored(log: PartitionLog) -> bytes:
    return b"".join(s.file.read(0, s.size) for s in log.segments)


# -- appending


def test_a_batch_is_stamped_and_nothing_else() -> None:
    log = opened()
    append(log, [b"a", b"b"])
    data = encode([b"c"])
    done = log.append_leader(memoryview(data), parse(data), 4, TIME_MS)
    assert done == (2, 2, TIME_MS, 0, False)
    [_, (pos, header)] = headers(stored(log))
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    assert stored(log)[pos + 16 :] == data[16:]
    assert log.epochs.entries() == [(0, 0), (4, 2)]


def test_log_append_time_is_stamped_with_a_new_crc() -> None:
    log = opened(log_append_time=True)
    done = append(log, [b"a", b"b"], now_ms=TIME_MS + 5)
    assert done.timestamp_ms == TIME_MS + 5
    [(pos, header)] = headers(stored(log))
    assert header.is_log_append_time
    assert header.max_timestamp == TIME_MS + 5
    assert crc_ok(stored(log), pos, header)
    assert max_timestamp(log) == (TIME_MS + 5, 0)


def test_a_follower_takes_batches_as_they_are() -> None:
    log = opened(segment_bytes=200)
    data = encode([b"a"], base_offset=3, leader_epoch=2) + encode([b"b"] * 9, base_offset=9)
    log.append_follower(data + data[:40])  # a cut-off last one is left out
    assert stored(log) == data
    assert log.end_offset == 18
    with pytest.raises(UnexpectedOffset):
        log.append_follower(encode([b"c"], base_offset=17))
    with pytest.raises(errors.CorruptMessage):
        log.append_follower(encode([b"c"], base_offset=18)[:-1] + b"!")
    assert stored(log) == data


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"segment_bytes": 170}, [0, 2, 4]),  # two batches of 69 or 70 bytes each
        ({"index_interval_bytes": 0, "segment_index_bytes": 24}, [0, 2, 4]),  # time index is full
        ({"segment_ms": 2}, [0, 3]),  # by the batches' own timestamps
        ({"segment_ms": 3, "segment_jitter_ms": 1}, [0, 3]),
        ({}, [0]),
    ],
)
def test_a_segment_is_closed_when_it_is(config: dict[str, Any], expected: list[int]) -> None:
    log = opened(**config)
    for n in range(5):
        append(log, [b"v"], timestamp_ms=TIME_MS + n)
    assert bases(log) == expected
    assert [offset for offset, _ in content(log)] == [0, 1, 2, 3, 4]


def test_a_batch_larger_than_a_segment_gets_its_own() -> None:
    log = opened(segment_bytes=100)
    for size in (10, 500, 10):
        append(log, [b"v" * size])
    assert bases(log) == [0, 1, 2]


def test_closing_a_segment_writes_its_files() -> None:
    disk = SimDisk()
    log = opened(disk, segment_bytes=170, index_interval_bytes=10)
    for n in range(3):
        append(log, [b"v"], timestamp_ms=TIME_MS + n)
    log.flush_state.flush()
    names = sorted(entry.name for entry in disk.entries("t-0"))
    assert names == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.log",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
    ]
    assert log.snapshots.offsets == [2]


def test_an_empty_segment_is_not_closed() -> None:
    log = opened()
    assert log.roll(TIME_MS) is log.segments.active
    assert bases(log) == [0]


# -- producers


def test_duplicates_and_gaps_of_an_idempotent_producer() -> None:
    """Invariant 50."""
    log = opened()

    def send(sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, bool]:
        done = append(
            log,
            [b"v"] * count,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return done.base_offset, done.duplicate

    assert [send(n * 2) for n in range(6)] == [(n * 2, False) for n in range(6)]
    assert [send(n * 2) for n in range(1, 6)] == [(n * 2, True) for n in range(1, 6)]
    for gap in (0, 13, 14, 11):  # 0 is older than the last five
        with pytest.raises(errors.OutOfOrderSequenceNumber):
            send(gap)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(1, epoch=1)
    assert send(0, epoch=1) == (12, False)
    with pytest.raises(errors.InvalidProducerEpoch):
        send(12, epoch=0)
    assert log.end_offset == 14


def test_sequences_wrap() -> None:
    """Invariant 50."""
    log = opened()
    top = (1 << 31) - 1
    for sequence in (top - 1, 0, 2):
        append(log, [b"v"] * 2, producer_id=1, producer_epoch=0, base_sequence=sequence)
    again = append(log, [b"v"] * 2, producer_id=1, producer_epoch=0, base_sequence=top - 1)
    assert again[:2] == (0, 1)
    log = opened()
    append(log, [b"v"] * 4, producer_id=1, producer_epoch=0, base_sequence=top - 1)  # over the top
    append(log, [b"v"], producer_id=1, producer_epoch=0, base_sequence=2)
    assert append(log, [b"v"] * 4, producer_id=1, producer_epoch=0, base_sequence=top - 1).duplicate


def transact(log: PartitionLog, producer: int, epoch: int = 0) -> int:
    done = append(
        log,
        [b"t"],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    return done.base_offset


def end(log: PartitionLog, producer: int, *, commit: bool, epoch: int = 1) -> int:
    data = end_txn_marker(
        commit=commit,
        coordinator_epoch=0,
        producer_id=producer,
        producer_epoch=epoch,
        timestamp_ms=TIME_MS,
    )
    return log.append_leader(
        memoryview(data), parse(data), 0, TIME_MS, from_client=False
    ).base_offset


def test_what_is_stable_ends_before_the_first_open_transaction() -> None:
    log = opened(segment_bytes=200)
    first, second = transact(log, 1), transact(log, 2)
    append(log, [b"plain"])
    assert log.producers.last_stable_offset(log.end_offset) == first
    marker = end(log, 1, commit=False)
    assert log.producers.last_stable_offset(marker) == first  # the marker is not committed yet
    assert log.producers.last_stable_offset(log.end_offset) == second
    assert log.segments.aborted_transactions(0, log.end_offset) == [(1, first, marker, second)]
    end(log, 2, commit=True)
    assert log.producers.last_stable_offset(log.end_offset) == log.end_offset
    last = transact(log, 1, epoch=1)
    other = end(log, 1, commit=False, epoch=2)
    assert log.segments.aborted_transactions(0, log.end_offset) == [
        (1, first, marker, second),
        (1, last, other, other + 1),
    ]
    assert log.segments.aborted_transactions(marker + 1, last) == []
    with pytest.raises(errors.InvalidProducerEpoch):
        end(log, 1, commit=True, epoch=1)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    """Invariant 63."""
    log = opened()
    transact(log, 1)
    with pytest.raises(errors.InvalidTxnState):
        append(log, [b"x"], producer_id=1, producer_epoch=0, base_sequence=1)


def test_truncation_brings_back_the_producers_of_before() -> None:
    """Invariants 51 and 64."""
    log = opened(segment_bytes=200)
    for n in range(8):
        append(log, [b"v"], producer_id=1, producer_epoch=0, base_sequence=n)
    transact(log, 2)
    log.truncate_to(5)
    producer = log.producers.get(1)
    assert producer is not None
    assert producer.last_sequence == 4
    assert log.producers.get(2) is None
    assert append(log, [b"v"], producer_id=1, producer_epoch=0, base_sequence=5).base_offset == 5


# -- reading


def test_a_read_stays_below_its_end_and_gives_one_batch_at_least() -> None:
    """Invariants 13, 16 and 18."""
    log = opened()
    for _ in range(4):
        append(log, [b"v" * 50] * 2)
    size = log.segments.size // 4
    for offset, max_bytes, end_offset, at_least_one, expected in (
        (0, 1 << 20, 8, True, (0, 4 * size)),
        (3, 1 << 20, 8, True, (size, 3 * size)),
        (2, 10, 8, True, (size, size)),
        (2, 10, 8, False, (size, 10)),
        (2, size + 10, 8, True, (size, size + 10)),
        (0, 1 << 20, 5, True, (0, 2 * size)),  # the batch of 4 reaches past 5
        (4, 1 << 20, 4, True, (0, 0)),
        (8, 1 << 20, 8, True, (0, 0)),
    ):
        with log.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one) as got:
            assert (got.position, len(got)) == expected
            assert len(got.read()) == len(got)
    log.advance_start(3)
    for offset in (2, 9):
        with pytest.raises(errors.OffsetOutOfRange):
            log.read(offset, 100, end_offset=8)


def test_a_region_outlives_its_segment(tmp_path) -> None:
    disk = RealDisk(str(tmp_path))
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=200)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for _ in range(6):
        append(log, [b"v" * 50])
    region = log.read(0, 1000, end_offset=6)
    for path in log.drop_segments(2):
        disk.remove(path)
    assert region.fileno() >= 0
    assert len(region.read()) == len(region) > 0
    region.close()
    assert log.start_offset == log.segments[0].base_offset == 2


def test_timestamps_are_found_across_segments() -> None:
    """Invariant 17."""
    log = opened(segment_bytes=300, index_interval_bytes=60)
    times = [5, 3, 9, 9, 4, 20, 11, 11, 30, 2]
    for time in times:
        append(log, [b"v", b"w"], timestamp_ms=time)
    for wanted in range(1, 32):
        expected = next(((n * 2, t) for n, t in enumerate(times) if t >= wanted), None)
        assert offset_for_timestamp(log, wanted) == expected
    assert max_timestamp(log) == (30, 16)
    log.advance_start(17)
    assert max_timestamp(log) == (30, 17)
    log.advance_start(18)
    assert max_timestamp(log) == (2, 18)
    assert offset_for_timestamp(log, 1) == (18, 2)


def test_a_wrong_index_is_made_anew() -> None:
    """Invariant 79."""
    for damage in (b"\xff" * 16, b"\0" * 16, b"\0\0\0\4\0\0\0\11", b"", b"x"):
        disk = SimDisk()
        log = opened(disk, segment_bytes=500, index_interval_bytes=60)
        for _ in range(12):
            append(log, [b"v"])
        log.flush_state.flush()
        index = disk.read("t-0/00000000000000000000.index")
        disk.write("t-0/00000000000000000000.index", damage)
        assert [offset for offset, _ in content(log, 5)] == list(range(5, 12))
        if damage and len(damage) % 8 == 0 and damage[0] == 0 and damage[3]:
            assert disk.read("t-0/00000000000000000000.index") == index


# -- slow and broken disks


def test_a_slow_directory_writes_behind() -> None:
    """Invariant 91: the append returns at once; readers wait until it is written."""
    disk = SimDisk()
    log = opened(disk, segment_bytes=300)
    notices: list[bool] = []
    log.writer.on_queued = lambda: notices.append(True)
    append(log, [b"a"])
    disk.slow = True
    for value in (b"b", b"c", b"d", b"e", b"f"):
        append(log, [value])
    assert (log.end_offset, log.writer.written_offset) == (6, 1)
    assert notices
    assert content(log) == [(0, b"a")]
    job = log.writer.queue.take()
    disk.slow = False
    append(log, [b"g"])  # not before those that wait
    log.truncate_to(6)
    assert log.writer.written_offset == 1
    job.run()
    log.on_written()
    assert (log.end_offset, log.writer.written_offset) == (6, 6)
    log.settle()
    assert not log.writer.queue
    append(log, [b"h"])
    assert log.writer.written_offset == 7
    assert [value for _, value in content(log)] == [b"a", b"b", b"c", b"d", b"e", b"f", b"h"]


def test_a_truncation_while_a_thread_writes() -> None:
    disk = SimDisk()
    log = opened(disk)
    log.writer.on_queued = lambda: None
    append(log, [b"a"])
    disk.slow = True
    append(log, [b"b"])
    append(log, [b"c"])
    job = log.writer.queue.take()
    log.truncate_to(2)
    append(log, [b"d"])
    job.run()
    log.on_written()
    assert log.writer.written_offset == 2
    log.settle()
    assert [value for _, value in content(log)] == [b"a", b"b", b"d"]
    assert len(stored(log)) == log.segments.size


@pytest.mark.parametrize("cut", [1, 100, 299, 599, 699])
@pytest.mark.parametrize("taken", [False, True])
def test_a_cut_far_back_in_what_is_not_written_yet(cut: int, taken: bool) -> None:
    """More batches wait than the segment knows the places of by heart."""
    disk = SimDisk()
    log = opened(disk, index_interval_bytes=500)
    log.writer.on_queued = lambda: None
    append(log, [b"first"])
    disk.slow = True
    for n in range(1, 700):
        append(log, [b"%d" % n])
    job = log.writer.queue.take() if taken else None
    log.truncate_to(cut)
    append(log, [b"again"])
    if job is not None:
        job.run()
        log.on_written()
    log.settle()
    expected = [b"first", *(b"%d" % n for n in range(1, cut)), b"again"]
    assert [value for _, value in content(log)] == expected
    assert len(stored(log)) == log.segments.size


@pytest.mark.parametrize("taken", [False, True])
def test_a_cut_inside_of_a_fetch_that_is_not_written_yet(taken: bool) -> None:
    """A follower's batches of one fetch are one write: its front stays."""
    disk = SimDisk()
    log = opened(disk)
    log.writer.on_queued = lambda: None
    disk.slow = True
    log.append_follower(b"".join(encode([b"%d" % n], base_offset=n) for n in range(9)))
    job = log.writer.queue.take() if taken else None
    log.truncate_to(4)
    append(log, [b"again"])
    append(log, [b"and again"])
    log.truncate_to(5)
    if job is not None:
        job.run()
        log.on_written()
    log.settle()
    assert [value for _, value in content(log)] == [b"0", b"1", b"2", b"3", b"again"]
    assert len(stored(log)) == log.segments.size


def test_an_index_made_anew_forgets_what_was_known_by_heart() -> None:
    log = opened(index_interval_bytes=0)
    for n in range(9):
        append(log, [b"%d" % n])
    log.segments.active.reindex()
    for offset in range(9):
        with log.read(offset, 1, end_offset=9) as region:
            assert parse(region.read()).base_offset == offset


def test_a_cut_of_a_segment_that_goes_is_forgotten() -> None:
    disk = SimDisk()
    log = opened(disk, segment_bytes=100)
    log.writer.on_queued = lambda: None
    for value in (b"a", b"b", b"c"):
        append(log, [value])
    disk.slow = True
    append(log, [b"d"])
    log.truncate_to(2)
    log.truncate_to(1)
    disk.slow = False
    log.settle()
    append(log, [b"e"])
    assert [value for _, value in content(log)] == [b"a", b"e"]


def test_a_write_error_leaves_the_log_as_it_was() -> None:
    """Invariant 88."""
    disk = SimDisk()
    log = opened(disk)
    append(log, [b"a"])
    disk.fail_at("write", OSError(errno.EIO, "broken"))
    failures: list[int] = []
    log.changes.on_change = lambda: failures.append(log.end_offset)
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"b"])
    assert (log.end_offset, log.writer.written_offset) == (1, 1)
    assert failures == [1]
    with pytest.raises(errors.KafkaStorageError):
        append(log, [b"b"])


def test_nothing_is_cut_off_while_a_flush_runs() -> None:
    """It would count what it syncs, and write indexes, of what is no more."""
    log = opened(segment_bytes=200)
    for _ in range(6):
        append(log, [b"v"])
    flush = log.flush_state.start()
    assert flush is not None
    flush.run()
    with pytest.raises(AssertionError, match="a flush is running"):
        log.truncate_to(4)
    with pytest.raises(AssertionError, match="a flush is running"):
        log.drop_segments(1)
    append(log, [b"w"])
    log.flush_state.end(flush)
    assert (log.flush_state.recovery_point, log.end_offset) == (6, 7)
    log.truncate_to(4)
    append(log, [b"w"])
    assert log.flush_state.recovery_point == 4
    log.flush_state.flush()
    assert log.flush_state.recovery_point == 5
    assert log.flush_state.start() is None


def test_a_failed_flush_promises_nothing() -> None:
    """Invariant 89."""
    disk = SimDisk()
    log = opened(disk)
    append(log, [b"v"])
    disk.fail_at("sync", OSError(errno.EIO, "broken"))
    for _ in range(2):
        with pytest.raises(errors.KafkaStorageError):
            log.flush_state.flush()
    assert log.flush_state.recovery_point == 0
