"""Reads of a log with damage: what is known as damaged is never returned, the rest is."""

import pytest

from kwire.errors import CorruptMessage, KafkaError, KafkaStorageError
from kwire.log.aborted_transactions import read_committed
from kwire.log.cold_lookups import WouldWait
from kwire.log.partition_log import PartitionLog
from kwire.records.header import headers
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, offset_for_timestamp
from tests.support.log.scrubbed import batches, find_damage, first_segment, make_log, rot


def damaged_log(field: int = 70, *numbers: int) -> PartitionLog:
    """Return a log that knows of the damage to a byte of some batches, by default the fifth."""
    log = make_log()
    every = batches(log)
    for number in numbers or (5,):
        rot(log, every[number][0] + field, 64)
    first_segment(log).damage = find_damage(log)
    assert first_segment(log).damage
    return log


def read_all(log: PartitionLog, max_bytes: int = 10_000) -> list[int]:
    """Read as a consumer does that skips what it cannot read; return the batches' offsets."""
    offset, read_offsets = log.log_start, list[int]()
    while offset < log.end_offset:
        try:
            with log.read(offset, max_bytes, end_offset=log.end_offset) as region:
                data = region.read()
        except KafkaError:
            offset += 1
            continue
        for _, header in headers(data):
            read_offsets.append(header.base_offset)
            offset = header.next_offset
    return read_offsets


@pytest.mark.parametrize("field", [3, 9, 14, 16, 19, 22, 25, 70])
def test_read_that_begins_in_a_damaged_batch_is_an_error(field: int) -> None:
    """Invariant 80."""
    log = damaged_log(field)
    for offset in (10, 11):
        with pytest.raises(CorruptMessage):
            log.read(offset, 10_000, end_offset=log.end_offset)


@pytest.mark.parametrize("field", [3, 9, 14, 16, 19, 22, 25, 70])
@pytest.mark.parametrize("max_bytes", [1, 100, 250, 10_000])
def test_batches_around_a_damaged_one_are_read(field: int, max_bytes: int) -> None:
    """Invariants 7 and 80."""
    log = damaged_log(field)
    (damaged,) = list(first_segment(log).damage)
    intact = [*range(0, damaged.first_offset, 2), *range(damaged.end_offset, 25, 2)]
    assert read_all(log, max_bytes) == intact


def test_bytes_end_before_a_damaged_batch() -> None:
    log = damaged_log()
    position = batches(make_log())[5][0]
    with log.read(0, 10_000, end_offset=log.end_offset) as region:
        assert (region.position, len(region)) == (0, position)


def test_first_and_last_batch_may_be_damaged() -> None:
    log = damaged_log(9, 0, 11)
    assert read_all(log) == [*range(next(iter(first_segment(log).damage)).end_offset, 22, 2), 24]


def test_read_committed_fetch_gets_the_same_error() -> None:
    log = damaged_log()
    with pytest.raises(CorruptMessage):
        read_committed(log, 10, 10_000, end_offset=24)
    region, _ = read_committed(log, 12, 10_000, end_offset=24)
    region.close()
    assert region.position == batches(make_log())[6][0]


def test_clients_retry_while_the_batch_is_under_repair() -> None:
    log = damaged_log()
    next(iter(first_segment(log).damage)).is_under_repair = True
    with pytest.raises(KafkaStorageError):
        log.read(10, 10_000, end_offset=log.end_offset)


def test_lookup_in_a_thread_skips_the_damage_too() -> None:
    log = damaged_log(9)
    assert isinstance(log.disk, SimDisk)
    end = next(iter(first_segment(log).damage)).end_offset
    log.disk.cached = False
    with pytest.raises(WouldWait) as cold:
        log.read(end, 10_000, end_offset=log.end_offset, wait=False)
    cold.value.job()
    log.disk.cached = True
    with log.read(end, 10_000, end_offset=log.end_offset, wait=False) as region:
        assert next(headers(region.read()))[1].base_offset == end


def test_search_for_a_timestamp_passes_over_the_damage() -> None:
    log = make_log()
    append(log, [b"late"], timestamp_ms=TIME_MS + 9)
    rot(log, batches(log)[5][0] + 9, 64)
    first_segment(log).damage = find_damage(log)
    assert offset_for_timestamp(log, TIME_MS + 9) == (25, TIME_MS + 9)


@pytest.mark.parametrize(("cut", "is_left"), [(20, True), (11, False), (10, False), (4, False)])
def test_truncation_cuts_the_damage_off(cut: int, is_left: bool) -> None:
    log = damaged_log()
    log.truncate_to(cut, TIME_MS)
    assert bool(log.segments.active.damage) is is_left
    append(log, [b"new"], epoch=6)
    assert read_all(log) == [n for n in (*range(0, cut - cut % 2, 2), cut) if n != 10 or n == cut]


def test_unknown_damage_to_a_length_does_not_hide_the_rest_of_the_segment() -> None:
    """Invariant 7: the reader gets an error instead of the next segment."""
    log = make_log(index_interval_bytes=1 << 20)
    position, _ = batches(log)[5]
    rot(log, position + 8, 255)
    with pytest.raises(CorruptMessage):
        log.read(10, 10_000, end_offset=log.end_offset)
