"""The states of producers in a partition, and the time for which it keeps them.

A producer that is known has its duplicates acknowledged and its gaps refused; one that is not
known may begin at any sequence.
"""

import pytest

from kwire import errors
from kwire.drive import run_steps
from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, end_transaction

EXPIRATION_MS = 3_600_000
CONFIG = LogConfig(segment_bytes=200, producer_id_expiration_ms=EXPIRATION_MS)
RESTARTS = pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])


def make_log() -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    disk.make_directory("t-0")
    return disk, reopen(disk, TIME_MS)


def reopen(disk: SimDisk, now_ms: int, *, clean: bool = False, log_start: int = 0) -> PartitionLog:
    offsets = StoredOffsets(clean=clean, log_start=log_start)
    partition = TopicPartition("t", 0)
    return open_log(disk, "t-0", partition, now_ms=now_ms, config=CONFIG, offsets=offsets)


def restart(
    disk: SimDisk, log: PartitionLog, now_ms: int, *, clean: bool, log_start: int = 0
) -> PartitionLog:
    if clean:
        log.close()
        return reopen(disk, now_ms, clean=True, log_start=log_start)
    return reopen(disk.after_kill(), now_ms, log_start=log_start)


def send(log: PartitionLog, sequence: int, *, transactional: bool = False) -> bool:
    """Append a batch of one record; return whether it was a duplicate."""
    appended = append(
        log,
        [b"v"],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )
    return appended.is_duplicate


def test_producer_is_remembered_for_its_expiration_time() -> None:
    """Invariants 50 and 52: the time runs from its last batch."""
    _, log = make_log()
    send(log, 0)
    run_steps(log.producers.expiring(TIME_MS + EXPIRATION_MS - 1, EXPIRATION_MS))
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(log, 9)
    assert send(log, 0)
    run_steps(log.producers.expiring(TIME_MS + EXPIRATION_MS, EXPIRATION_MS))
    assert not send(log, 9)


def test_producer_with_an_open_transaction_is_remembered() -> None:
    """Invariant 52: readers still wait for its end, and only its marker gives them that."""
    _, log = make_log()
    send(log, 0, transactional=True)
    late_ms = TIME_MS + 100 * EXPIRATION_MS
    run_steps(log.producers.expiring(late_ms, EXPIRATION_MS))
    assert log.producers.last_stable_offset(log.end_offset) == 0
    assert send(log, 0, transactional=True)
    end_transaction(log, 7, commit=True)
    assert log.producers.last_stable_offset(log.end_offset) == log.end_offset == 2
    run_steps(log.producers.expiring(late_ms, EXPIRATION_MS))
    assert not send(log, 9)


@pytest.mark.parametrize("change", ["sent", "transaction", "removed"])
def test_producer_that_changes_during_the_expiry_is_judged_as_it_is(change: str) -> None:
    """Invariants 50 and 52: many producers expire in slices, and appends go on."""
    _, log = make_log()
    for producer in range(1_000):
        append(log, [b"v"], producer_id=producer, producer_epoch=0, base_sequence=0)
    now_ms = TIME_MS + EXPIRATION_MS
    expiry = log.producers.expiring(now_ms, EXPIRATION_MS)
    next(expiry)
    again = {"producer_id": 999, "producer_epoch": 0, "base_sequence": 1}
    if change == "sent":
        append(log, [b"v"], timestamp_ms=now_ms, **again)
    elif change == "transaction":
        append(log, [b"v"], transactional=True, **again)
    else:
        log.producers.clear()
    assert list(expiry)
    assert [p.producer_id for p in log.producers.all()] == ([] if change == "removed" else [999])


@RESTARTS
def test_open_transaction_outlives_a_late_restart(clean: bool) -> None:
    """Invariant 52."""
    disk, log = make_log()
    send(log, 0, transactional=True)
    again = restart(disk, log, TIME_MS + 100 * EXPIRATION_MS, clean=clean)
    assert again.producers.last_stable_offset(again.end_offset) == 0
    end_transaction(again, 7, commit=True)
    assert again.producers.last_stable_offset(again.end_offset) == 2


@RESTARTS
def test_restart_does_not_renew_the_time_of_a_producer(clean: bool) -> None:
    """Invariant 52."""
    disk, log = make_log()
    send(log, 0)
    again = restart(disk, log, TIME_MS + EXPIRATION_MS - 1, clean=clean)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(again, 9)
    run_steps(again.producers.expiring(TIME_MS + EXPIRATION_MS, EXPIRATION_MS))
    assert not send(again, 9)


@RESTARTS
def test_producer_that_expired_while_the_node_was_down_is_not_loaded(clean: bool) -> None:
    """Invariant 52."""
    disk, log = make_log()
    send(log, 0)
    again = restart(disk, log, TIME_MS + EXPIRATION_MS, clean=clean)
    assert not send(again, 9)


@RESTARTS
def test_deleted_records_are_still_known_as_duplicates(clean: bool) -> None:
    """Invariant 51: a producer may send its last batches again after DeleteRecords."""
    disk, log = make_log()
    for sequence in range(6):
        send(log, sequence)
    assert len(log.segments) > 1
    log.advance_log_start(6)
    assert send(log, 5)
    again = restart(disk, log, TIME_MS, clean=clean, log_start=6)
    assert again.log_start == again.end_offset == 6
    assert send(again, 5)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(again, 7)
    assert not send(again, 6)


def test_copy_that_begins_at_a_marker_refuses_the_batch_after_deleted_ones() -> None:
    """Invariant 50: a replica made after DeleteRecords cannot tell deleted batches from lost ones.

    As in Kafka, the producer goes on with its next epoch.
    """
    _, log = make_log()
    for sequence in range(3):
        send(log, sequence, transactional=True)
    end_transaction(log, 7, commit=True)
    with log.read(3, 10_000, end_offset=4) as region:
        marker = region.read()
    disk = SimDisk()
    disk.make_directory("t-0")
    copy = reopen(disk, TIME_MS, log_start=3)
    copy.truncate_fully_at(3)
    copy.append_follower(marker)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(copy, 3, transactional=True)
    assert not send(log, 3, transactional=True)
    append(copy, [b"v"], producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
    assert copy.end_offset == 5


def test_duplicates_of_removed_segments_are_still_known_after_a_kill() -> None:
    """Invariant 51: retention may remove a segment before any flush has covered its roll."""
    disk, log = make_log()
    for sequence in range(6):
        send(log, sequence)
    log.roll(TIME_MS)
    for path in log.drop_segments(len(log.segments) - 1):
        disk.remove(path)
    again = restart(disk, log, TIME_MS, clean=False)
    assert again.log_start == again.end_offset == 6
    assert send(again, 5)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        send(again, 7)
