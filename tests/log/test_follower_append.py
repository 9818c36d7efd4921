"""A follower that appends many batches of one fetch has the files of single appends."""

import pytest

from kwire.errors import CorruptMessage, FencedLeaderEpoch
from kwire.log.aborted_transactions import find_aborted
from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog, create
from kwire.log.producers import ProducerStates, read_snapshot
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.header import headers
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content, encode, end_transaction

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)
PARTITION = TopicPartition("t", 0)


def empty_log(disk: SimDisk, config: LogConfig) -> PartitionLog:
    disk.make_directory("t-0")
    return create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=config)


def leader_batches() -> bytes:
    """Return transactions of three producers; some are open wherever a follower rolls."""
    log = empty_log(SimDisk(), LogConfig())
    sequences = dict.fromkeys(range(3), 0)
    for step in range(40):
        producer = step % 3
        if step % 4 == 3 and log.producers.get(producer) is not None:
            end_transaction(log, producer, commit=step % 8 == 3)
            continue
        append(
            log,
            [b"v%d" % step] * 2,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += 2
    return log.segments.active.file.read(0, log.segments.size)


def producer_states(data: bytes, end_offset: int) -> list[tuple[int, int, int]]:
    """Return each producer's state in a snapshot at this offset."""
    states = ProducerStates()
    for pos, header in headers(data):
        if header.next_offset <= end_offset:
            states.replay(data, pos, header)
    return sorted((p.producer_id, p.last_sequence, p.open_from) for p in states.all())


def test_roll_within_a_fetch_writes_the_state_before_it() -> None:
    """Invariants 51 and 64: the rolls happen in the middle of one fetch."""
    data = leader_batches()
    disk = SimDisk()
    log = empty_log(disk, CONFIG)
    log.append_follower(data)
    assert len(log.segments) > 5
    for segment in log.segments[1:]:
        snapshot = read_snapshot(log.snapshots.read(segment.base_offset))
        states = sorted((p.producer_id, p.last_sequence, p.open_from) for p in snapshot)
        assert states == producer_states(data, segment.base_offset)
        assert states, "no producer has a state at this roll"
    one_by_one = empty_log(other := SimDisk(), CONFIG)
    for pos, header in headers(data):
        one_by_one.append_follower(memoryview(data)[pos : pos + header.size])
    aborted = find_aborted(log.segments, 0, log.end_offset)
    assert aborted
    assert aborted == find_aborted(one_by_one.segments, 0, log.end_offset)
    log.close()
    one_by_one.close()
    assert {name: bytes(inode.data) for name, inode in disk.files.items()} == {
        name: bytes(inode.data) for name, inode in other.files.items()
    }


@pytest.mark.parametrize("clean", [True, False])
def test_restart_restores_producers_and_aborted_transactions_of_a_fetch(clean: bool) -> None:
    """Invariants 51 and 64."""
    data = leader_batches()
    disk = SimDisk()
    log = empty_log(disk, CONFIG)
    log.append_follower(data)
    log.flush_state.flush()
    aborted = find_aborted(log.segments, 0, log.end_offset)
    if clean:
        log.close()
    offsets = StoredOffsets(clean=clean, recovery_point=log.flush_state.recovery_point)
    again = open_log(
        disk.after_kill(), "t-0", PARTITION, now_ms=TIME_MS, config=CONFIG, offsets=offsets
    )
    assert find_aborted(again.segments, 0, log.end_offset) == aborted
    states = [(p.producer_id, p.last_sequence, p.open_from) for p in again.producers.all()]
    assert sorted(states) == producer_states(data, log.end_offset)


def test_batches_larger_than_a_segment_are_copied_each_into_its_own() -> None:
    """A follower may learn a smaller segment.bytes before it copies what the leader has."""
    data = leader_batches()
    log = empty_log(SimDisk(), LogConfig(segment_bytes=50))
    log.append_follower(data)
    assert b"".join(segment.file.read(0, segment.size) for segment in log.segments) == data
    assert [s.base_offset for s in log.segments] == [h.base_offset for _, h in headers(data)]


def test_answer_that_a_deposed_leader_sends_late_is_not_appended_past_its_epoch() -> None:
    """Invariant 23: the leader truncates, and copies the next leader's batches, before it sends.

    The file then has other batches at the positions that the answer promised.
    """
    deposed = empty_log(SimDisk(), LogConfig())
    follower = empty_log(SimDisk(), LogConfig())
    for number in range(6):
        append(deposed, [b"5-%d" % number], epoch=5)
    with deposed.read(0, 1 << 20, end_offset=4) as region:
        follower.append_follower(region.read(), epoch=5)
    with deposed.read(4, 1 << 20, end_offset=6) as late:
        deposed.truncate_to(2)
        for number in range(2, 6):
            deposed.append_follower(
                encode([b"6-%d" % number], base_offset=number, leader_epoch=6), epoch=6
            )
        with pytest.raises(FencedLeaderEpoch):
            follower.append_follower(late.read(), epoch=5)
    assert content(follower) == [(number, b"5-%d" % number) for number in range(4)]
    assert follower.epochs.entries() == [(5, 0)]


def test_batches_in_front_of_a_damaged_one_are_appended() -> None:
    log = empty_log(SimDisk(), LogConfig())
    batches = [encode([b"%d" % number], base_offset=number) for number in range(4)]
    damaged = batches[2][:-1] + b"!"
    with pytest.raises(CorruptMessage):
        log.append_follower(b"".join([*batches[:2], damaged, batches[3]]))
    assert content(log) == [(0, b"0"), (1, b"1")]
    with pytest.raises(CorruptMessage):  # Nothing that is read as a header can be one.
        log.append_follower(batches[2] + bytes(100))
    assert log.end_offset == 3
    log.append_follower(batches[3])
    assert log.end_offset == 4
