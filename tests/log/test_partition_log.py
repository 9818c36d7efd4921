"""The methods of a partition's log."""

import errno
from typing import Any

import pytest

from kwire import errors
from kwire.log.aborted_transactions import find_aborted
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.fetched_batches import UnexpectedOffset
from kwire.log.partition_log import PartitionLog, create
from kwire.records.control import end_txn_marker
from kwire.records.header import crc_ok, headers, parse
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import (
    TIME_MS,
    append,
    content,
    encode,
    max_timestamp,
    offset_for_timestamp,
)


def make_log(disk: SimDisk | None = None, **config: Any) -> PartitionLog:
    disk = SimDisk() if disk is None else disk
    disk.make_directory("t-0")
    log_config = LogConfig(**config)
    return create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=log_config)


def base_offsets(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def file_bytes(log: PartitionLog) -> bytes:
    """Return the bytes of all segments."""
    return b"".join(s.file.read(0, s.size) for s in log.segments)


# -- appending


def test_append_changes_only_base_offset_and_leader_epoch() -> None:
    log = make_log()
    append(log, [b"a", b"b"])
    data = encode([b"c"])
    appended = log.append_leader(memoryview(data), parse(data), 4, TIME_MS)
    assert appended == (2, 2, TIME_MS, 0, False)
    [_, (pos, header)] = headers(file_bytes(log))
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    assert file_bytes(log)[pos + 16 :] == data[16:]
    assert log.epochs.entries() == [(0, 0), (4, 2)]


def test_log_append_time_replaces_the_timestamp_and_the_crc() -> None:
    log = make_log(log_append_time=True)
    appended = append(log, [b"a", b"b"], now_ms=TIME_MS + 5)
    assert appended.timestamp_ms == TIME_MS + 5
    [(pos, header)] = headers(file_bytes(log))
    assert header.is_log_append_time
    assert header.max_timestamp == TIME_MS + 5
    assert crc_ok(file_bytes(log), pos, header)
    assert max_timestamp(log) == (TIME_MS + 5, 0)


def test_follower_appends_batches_unchanged() -> None:
    log = make_log(segment_bytes=200)
    data = encode([b"a"], base_offset=3) + encode([b"b"] * 9, base_offset=9)
    log.append_follower(data + data[:40])  # An incomplete last one is left out.
    assert file_bytes(log) == data
    assert log.end_offset == 18
    with pytest.raises(UnexpectedOffset):
        log.append_follower(encode([b"c"], base_offset=17))
    with pytest.raises(errors.CorruptMessage):
        log.append_follower(encode([b"c"], base_offset=18)[:-1] + b"!")
    assert file_bytes(log) == data


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"segment_bytes": 170}, [0, 2, 4]),  # Two batches of 69 or 70 bytes each.
        ({"index_interval_bytes": 0, "segment_index_bytes": 24}, [0, 2, 4]),  # It is full.
        ({"segment_ms": 2}, [0, 3]),  # By the timestamps of the batches.
        ({}, [0]),
    ],
)
def test_segment_rolls_by_size_index_size_and_age(
    config: dict[str, Any], expected: list[int]
) -> None:
    log = make_log(**config)
    for n in range(5):
        append(log, [b"v"], timestamp_ms=TIME_MS + n)
    assert base_offsets(log) == expected
    assert [offset for offset, _ in content(log)] == [0, 1, 2, 3, 4]


def test_batch_larger_than_a_segment_gets_its_own() -> None:
    log = make_log(segment_bytes=100)
    for size in (10, 500, 10):
        append(log, [b"v" * size])
    assert base_offsets(log) == [0, 1, 2]


def test_closed_segment_has_index_and_snapshot_files() -> None:
    disk = SimDisk()
    log = make_log(disk, segment_bytes=170, index_interval_bytes=10)
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


def test_empty_segment_is_not_rolled() -> None:
    log = make_log()
    assert log.roll(TIME_MS) is log.segments.active
    assert base_offsets(log) == [0]


# -- producers


def test_idempotent_producer_gets_duplicates_acknowledged_and_gaps_refused() -> None:
    """Invariant 50."""
    log = make_log()

    def send(sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, bool]:
        appended = append(
            log,
            [b"v"] * count,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return appended.base_offset, appended.is_duplicate

    assert [send(n * 2) for n in range(6)] == [(n * 2, False) for n in range(6)]
    assert [send(n * 2) for n in range(1, 6)] == [(n * 2, True) for n in range(1, 6)]
    for gap in (0, 13, 14, 11):  # 0 is older than the last five batches.
        with pytest.raises(errors.OutOfOrderSequenceNumber):
            send(gap)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(1, epoch=1)
    assert send(0, epoch=1) == (12, False)
    with pytest.raises(errors.InvalidProducerEpoch):
        send(12, epoch=0)
    assert log.end_offset == 14


def test_sequence_numbers_wrap() -> None:
    """Invariant 50."""
    log = make_log()
    top = (1 << 31) - 1
    for sequence in (top - 1, 0, 2):
        append(log, [b"v"] * 2, producer_id=1, producer_epoch=0, base_sequence=sequence)
    again = append(log, [b"v"] * 2, producer_id=1, producer_epoch=0, base_sequence=top - 1)
    assert again[:2] == (0, 1)
    log = make_log()
    append(log, [b"v"] * 4, producer_id=1, producer_epoch=0, base_sequence=top - 1)  # It wraps.
    append(log, [b"v"], producer_id=1, producer_epoch=0, base_sequence=2)
    assert append(
        log, [b"v"] * 4, producer_id=1, producer_epoch=0, base_sequence=top - 1
    ).is_duplicate


def transact(log: PartitionLog, producer: int, epoch: int = 0) -> int:
    appended = append(
        log,
        [b"t"],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    return appended.base_offset


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


def test_last_stable_offset_is_the_start_of_the_first_open_transaction() -> None:
    log = make_log(segment_bytes=200)
    first, second = transact(log, 1), transact(log, 2)
    append(log, [b"plain"])
    assert log.producers.last_stable_offset(log.end_offset) == first
    marker = end(log, 1, commit=False)
    assert log.producers.last_stable_offset(marker) == first  # The marker is not committed.
    assert log.producers.last_stable_offset(log.end_offset) == second
    assert find_aborted(log.segments, 0, log.end_offset) == [(1, first, marker, second)]
    end(log, 2, commit=True)
    assert log.producers.last_stable_offset(log.end_offset) == log.end_offset
    last = transact(log, 1, epoch=1)
    other = end(log, 1, commit=False, epoch=2)
    assert find_aborted(log.segments, 0, log.end_offset) == [
        (1, first, marker, second),
        (1, last, other, other + 1),
    ]
    assert find_aborted(log.segments, marker + 1, last) == []
    with pytest.raises(errors.InvalidProducerEpoch):
        end(log, 1, commit=True, epoch=1)


def test_plain_batch_inside_a_transaction_is_refused() -> None:
    """Invariant 63."""
    log = make_log()
    transact(log, 1)
    with pytest.raises(errors.InvalidTxnState):
        append(log, [b"x"], producer_id=1, producer_epoch=0, base_sequence=1)


def test_truncation_restores_producer_states() -> None:
    """Invariants 51 and 64."""
    log = make_log(segment_bytes=200)
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


def test_read_ends_at_its_bounds_and_has_at_least_one_batch() -> None:
    """Invariants 13, 16 and 18."""
    log = make_log()
    for _ in range(4):
        append(log, [b"v" * 50] * 2)
    size = log.segments.size // 4
    for offset, max_bytes, end_offset, at_least_one, expected in (
        (0, 1 << 20, 8, True, (0, 4 * size)),
        (3, 1 << 20, 8, True, (size, 3 * size)),
        (2, 10, 8, True, (size, size)),
        (2, 10, 8, False, (0, 0)),
        (2, size + 10, 8, True, (size, size + 10)),
        (0, 1 << 20, 5, True, (0, 2 * size)),  # The batch at 4 ends above 5.
        (4, 1 << 20, 4, True, (0, 0)),
        (8, 1 << 20, 8, True, (0, 0)),
    ):
        region = log.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)
        with region:
            assert (region.position, len(region)) == expected
            assert len(region.read()) == len(region)
    log.advance_log_start(3)
    for offset in (2, 9):
        with pytest.raises(errors.OffsetOutOfRange):
            log.read(offset, 100, end_offset=8)


def test_region_of_a_removed_segment_can_be_read(tmp_path) -> None:
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
    assert log.log_start == log.segments[0].base_offset == 2


def test_search_by_timestamp_spans_segments() -> None:
    """Invariant 17."""
    log = make_log(segment_bytes=300, index_interval_bytes=60)
    times = [5, 3, 9, 9, 4, 20, 11, 11, 30, 2]
    for time in times:
        append(log, [b"v", b"w"], timestamp_ms=time)
    for timestamp in range(1, 32):
        expected = next(((n * 2, t) for n, t in enumerate(times) if t >= timestamp), None)
        assert offset_for_timestamp(log, timestamp) == expected
    assert max_timestamp(log) == (30, 16)
    log.advance_log_start(17)
    assert max_timestamp(log) == (30, 17)
    log.advance_log_start(18)
    assert max_timestamp(log) == (2, 18)
    assert offset_for_timestamp(log, 1) == (18, 2)


def test_wrong_index_is_rebuilt() -> None:
    """Invariant 79."""
    for damage in (b"\xff" * 16, b"\0" * 16, b"\0\0\0\4\0\0\0\11", b"", b"x"):
        disk = SimDisk()
        log = make_log(disk, segment_bytes=500, index_interval_bytes=60)
        for _ in range(12):
            append(log, [b"v"])
        log.flush_state.flush()
        index = disk.read("t-0/00000000000000000000.index")
        disk.write("t-0/00000000000000000000.index", damage)
        assert [offset for offset, _ in content(log, 5)] == list(range(5, 12))
        if damage and len(damage) % 8 == 0 and damage[0] == 0 and damage[3]:
            assert disk.read("t-0/00000000000000000000.index") == index


# -- slow and failing disks


def test_append_to_a_slow_directory_is_written_later() -> None:
    """Invariant 91: the append returns at once; a read ends before the unwritten batches."""
    disk = SimDisk()
    log = make_log(disk, segment_bytes=300)
    notifications: list[bool] = []
    log.writer.on_queued = lambda: notifications.append(True)
    append(log, [b"a"])
    disk.slow = True
    for value in (b"b", b"c", b"d", b"e", b"f"):
        append(log, [value])
    assert (log.end_offset, log.writer.written_offset) == (6, 1)
    assert notifications
    assert content(log) == [(0, b"a")]
    job = log.writer.queue.take()
    disk.slow = False
    append(log, [b"g"])  # It is queued behind the others.
    log.truncate_to(6)
    assert log.writer.written_offset == 1
    job.run()
    log.on_written()
    assert (log.end_offset, log.writer.written_offset) == (6, 6)
    log.write_queued()
    assert not log.writer.queue
    append(log, [b"h"])
    assert log.writer.written_offset == 7
    assert [value for _, value in content(log)] == [b"a", b"b", b"c", b"d", b"e", b"f", b"h"]


def test_truncation_during_a_write_keeps_later_appends() -> None:
    disk = SimDisk()
    log = make_log(disk)
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
    log.write_queued()
    assert [value for _, value in content(log)] == [b"a", b"b", b"d"]
    assert len(file_bytes(log)) == log.segments.size


@pytest.mark.parametrize("cut", [1, 100, 299, 599, 699])
@pytest.mark.parametrize("is_writing", [False, True])
def test_truncation_within_queued_batches(cut: int, is_writing: bool) -> None:
    """More batches are queued than the segment has positions in memory for."""
    disk = SimDisk()
    log = make_log(disk, index_interval_bytes=500)
    log.writer.on_queued = lambda: None
    append(log, [b"first"])
    disk.slow = True
    for n in range(1, 700):
        append(log, [b"%d" % n])
    job = log.writer.queue.take() if is_writing else None
    log.truncate_to(cut)
    append(log, [b"again"])
    if job is not None:
        job.run()
        log.on_written()
    log.write_queued()
    expected = [b"first", *(b"%d" % n for n in range(1, cut)), b"again"]
    assert [value for _, value in content(log)] == expected
    assert len(file_bytes(log)) == log.segments.size


@pytest.mark.parametrize("is_writing", [False, True])
def test_truncation_within_a_queued_fetch(is_writing: bool) -> None:
    """The batches of one fetch are one write; those before the cut are written."""
    disk = SimDisk()
    log = make_log(disk)
    log.writer.on_queued = lambda: None
    disk.slow = True
    log.append_follower(b"".join(encode([b"%d" % n], base_offset=n) for n in range(9)))
    job = log.writer.queue.take() if is_writing else None
    log.truncate_to(4)
    append(log, [b"again"])
    append(log, [b"and again"])
    log.truncate_to(5)
    if job is not None:
        job.run()
        log.on_written()
    log.write_queued()
    assert [value for _, value in content(log)] == [b"0", b"1", b"2", b"3", b"again"]
    assert len(file_bytes(log)) == log.segments.size


def test_rebuilt_index_of_the_active_segment_is_right() -> None:
    log = make_log(index_interval_bytes=0)
    for n in range(9):
        append(log, [b"%d" % n])
    log.segments.active.reindex()
    for offset in range(9):
        with log.read(offset, 1, end_offset=9) as region:
            assert parse(region.read()).base_offset == offset


def test_queued_truncation_of_a_removed_segment_is_dropped() -> None:
    disk = SimDisk()
    log = make_log(disk, segment_bytes=100)
    log.writer.on_queued = lambda: None
    for value in (b"a", b"b", b"c"):
        append(log, [value])
    disk.slow = True
    append(log, [b"d"])
    log.truncate_to(2)
    log.truncate_to(1)
    disk.slow = False
    log.write_queued()
    append(log, [b"e"])
    assert [value for _, value in content(log)] == [b"a", b"e"]


def test_write_error_leaves_the_log_unchanged() -> None:
    """Invariant 88."""
    disk = SimDisk()
    log = make_log(disk)
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


def test_truncation_is_refused_while_a_flush_runs() -> None:
    """The flush would count records, and write indexes, that the truncation removes."""
    log = make_log(segment_bytes=200)
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


def test_failed_flush_does_not_move_the_recovery_point() -> None:
    """Invariant 89."""
    disk = SimDisk()
    log = make_log(disk)
    append(log, [b"v"])
    disk.fail_at("sync", OSError(errno.EIO, "broken"))
    for _ in range(2):
        with pytest.raises(errors.KafkaStorageError):
            log.flush_state.flush()
    assert log.flush_state.recovery_point == 0


def test_epoch_without_records_is_removed_by_a_truncation_at_the_end() -> None:
    """Invariant 26: a former leader began it and appended nothing; the new leader lacks it."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS)
    append(log, [b"v"])
    first = log.epochs.entries()
    log.epochs.assign(9, log.end_offset)
    assert not log.truncate_to(log.end_offset)
    assert log.epochs.entries() == first
