"""The producer snapshot of a roll: the state at that moment, encoded later by the flush."""

import sys
from types import FrameType

from kwire.drive import run_steps
from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog, create
from kwire.log.producers import Producer, read_snapshot
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, end_transaction
from tests.support.log.restart import PARTITION


def log_of_producers(disk: SimDisk, count: int) -> PartitionLog:
    disk.make_directory("t-0")
    log = create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=LogConfig())
    for producer_id in range(count):
        append_of(log, producer_id)
    return log


def append_of(log: PartitionLog, producer_id: int) -> None:
    producer = log.producers.get(producer_id)
    sequence = 0 if producer is None else producer.last_sequence + 1
    append(
        log,
        [b"v"],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=producer_id % 2 == 1,
    )


def test_snapshot_has_the_producers_of_the_roll_whatever_comes_before_the_flush() -> None:
    """Invariant 51."""
    disk = SimDisk()
    log = log_of_producers(disk, 10)
    expected: dict[int, list[Producer]] = {}
    for _ in range(3):
        log.roll(TIME_MS)
        expected[log.end_offset] = read_snapshot(log.producers.freeze().to_bytes())
        for producer_id in (0, 2, 7, 7, 100 + log.end_offset):
            append_of(log, producer_id)
        end_transaction(log, 1, commit=True)
        append_of(log, 1)
        run_steps(log.producers.expiring(TIME_MS + 1000, 0))
        append_of(log, 4)
    for offset, producers in expected.items():
        assert read_snapshot(log.snapshots.read(offset)) == producers
    log.flush_state.flush()
    for offset, producers in expected.items():
        assert read_snapshot(disk.read(f"t-0/{offset:020}.snapshot")) == producers


def test_roll_does_no_work_for_each_producer() -> None:
    log = log_of_producers(SimDisk(), 3000)
    call_count = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal call_count
        call_count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        log.roll(TIME_MS)
    finally:
        sys.setprofile(None)
    assert 0 < call_count < 1000
