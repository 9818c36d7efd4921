"""The check of a closed segment finds every flipped bit, and nothing in an intact segment."""

from pathlib import Path
from random import Random

import pytest

from kwire.log.formats import names, offset_index
from kwire.log.scrub import segment_check
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import check_segment
from kwire.log.segments.damage import DamagedRange
from kwire.records.header import BatchHeader
from tests.support.log.batches import append, old_format_segment
from tests.support.log.scrubbed import batches, find_damage, first_segment, job_of, make_log, rot

FIELDS = {
    "base offset": (0, 8),
    "length": (8, 12),
    "leader epoch": (12, 16),
    "magic": (16, 17),
    "checksum": (17, 21),
    "attributes": (21, 23),
    "last offset delta": (23, 27),
    "timestamps": (27, 43),
    "producer": (43, 57),
    "record count": (57, 61),
    "records": (61, 90),
}
"""The bytes of a batch, by field."""


def offset_pairs(damage: tuple[DamagedRange, ...]) -> list[tuple[int, int]]:
    """Return the offsets that the ranges hide."""
    return [(damaged.first_offset, damaged.end_offset) for damaged in damage]


def offsets(header: BatchHeader) -> tuple[int, int]:
    return header.base_offset, header.next_offset


def test_intact_segment_has_no_damage() -> None:
    log = make_log()
    report = check_segment(log.disk, job_of(log), lambda size: None)
    assert report.damage == ()
    assert report.size == first_segment(log).size


@pytest.mark.parametrize("field", FIELDS)
def test_each_flipped_bit_of_a_field_damages_its_batch(field: str) -> None:
    """Invariant 80; without an index entry near, a damaged length hides more than its batch."""
    begin, end = FIELDS[field]
    for number in (0, 4, 11):
        for at in range(begin, end):
            for bit in range(8):
                log = make_log(index_interval_bytes=0)
                position, header = batches(log)[number]
                rot(log, position + at, 1 << bit)
                (damaged,) = find_damage(log)
                assert damaged.position == position, (at, bit)
                assert offsets(header)[0] == damaged.first_offset, (at, bit)
                assert damaged.end_offset == header.next_offset, (at, bit)
                assert damaged.end_position == position + header.size, (at, bit)


def test_damaged_length_hides_batches_only_up_to_the_next_index_entry() -> None:
    log = make_log(24, index_interval_bytes=300)
    every = batches(log)
    position, _ = every[1]
    rot(log, position + 9, 64)
    (damaged,) = find_damage(log)
    assert damaged.position == position
    index = log.disk.read(first_segment(log).files.path(names.INDEX))
    indexed = [at for _, at in offset_index.entries(index, 0)]
    assert damaged.end_position == min(at for at in indexed if at > position)


def test_damaged_length_without_an_index_hides_the_rest_of_the_segment() -> None:
    log = make_log()
    position, header = batches(log)[3]
    rot(log, position + 8, 128)
    log.disk.remove(first_segment(log).files.path(names.INDEX))
    (damaged,) = find_damage(log)
    assert (damaged.position, damaged.end_position) == (position, first_segment(log).size)
    assert offset_pairs((damaged,)) == [(header.base_offset, log.segments[1].base_offset)]


def test_neighbours_with_damage_are_one_range() -> None:
    log = make_log()
    every = batches(log)
    for number in (2, 3, 7):
        rot(log, every[number][0] + 65)
    first, second, third = (every[number][1] for number in (2, 3, 7))
    assert offset_pairs(find_damage(log)) == [
        (first.base_offset, second.next_offset),
        offsets(third),
    ]


def test_garbage_in_place_of_a_stretch_hides_only_its_batches() -> None:
    for seed in range(50):
        log = make_log(24)
        every = batches(log)
        begin, end = every[5][0], every[9][0]
        garbage = Random(seed).randbytes(end - begin)
        first_segment(log).file.write((garbage,), begin)
        (damaged,) = find_damage(log)
        assert damaged.position == begin
        assert damaged.end_position >= end
        assert damaged.first_offset == every[5][1].base_offset


def test_zeros_in_place_of_the_whole_file_hide_everything() -> None:
    log = make_log()
    first_segment(log).file.write((bytes(first_segment(log).size),), 0)
    assert offset_pairs(find_damage(log)) == [(0, log.segments[1].base_offset)]


def test_gaps_that_compaction_left_are_no_damage() -> None:
    log = make_log()
    file, every = first_segment(log).file, batches(log)
    data = bytearray(file.read(0, first_segment(log).size))
    begin, end = every[3][0], every[5][0]
    del data[begin:end]
    file.write((data,), 0)
    job = SegmentJob(
        directory=log.segments.directory,
        base_offset=0,
        end_offset=log.segments[1].base_offset,
        size=len(data),
        epochs=job_of(log).epochs,
        bytes_per_second=1.0,
    )
    assert check_segment(log.disk, job, lambda size: None).damage == ()


def test_wrong_list_of_epochs_does_not_condemn_the_batches() -> None:
    log = make_log()
    log.epochs.clear()
    log.epochs.assign(4, 0)
    assert find_damage(log) == ()


def test_messages_of_an_old_format_are_checked_by_their_own_checksum() -> None:
    log = make_log()
    data = old_format_segment()
    job = SegmentJob(
        directory=log.segments.directory,
        base_offset=0,
        end_offset=5,
        size=len(data),
        epochs=(),
        bytes_per_second=1.0,
    )
    first_segment(log).file.write((data,), 0)
    assert check_segment(log.disk, job, lambda size: None).damage == ()
    rot(log, 60)
    assert offset_pairs(check_segment(log.disk, job, lambda size: None).damage) == [(0, 5)]


def test_reads_are_accounted_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_check, "READ_BYTES", 500)
    log = make_log(100)
    sizes: list[int] = []
    assert check_segment(log.disk, job_of(log), sizes.append).damage == ()
    assert sum(sizes) >= first_segment(log).size
    assert max(sizes) <= 500


def test_file_that_ends_early_is_damaged(tmp_path: Path) -> None:
    log = make_log()
    every = batches(log)
    first_segment(log).file.truncate(every[9][0] + 5)
    assert offset_pairs(find_damage(log)) == [
        (every[9][1].base_offset, log.segments[1].base_offset)
    ]


def test_damage_at_the_end_of_a_segment_ends_with_the_next_segment() -> None:
    log = make_log()
    append(log, [b"later"])
    position, header = batches(log)[-1]
    rot(log, position + 66)
    assert offset_pairs(find_damage(log)) == [offsets(header)]


@pytest.mark.parametrize("seed", range(200))
def test_random_flips_hide_no_intact_batch_without_need(seed: int) -> None:
    """Invariant 80: each changed batch is hidden, and others only after a damaged length.

    The index has an entry for each batch, so a damaged length hides only its own batch.
    """
    random = Random(seed)
    log = make_log(30, index_interval_bytes=0)
    segment, every = first_segment(log), batches(log)
    before = segment.file.read(0, segment.size)
    for _ in range(random.randrange(1, 12)):
        rot(log, random.randrange(segment.size), 1 << random.randrange(8))
    after = segment.file.read(0, segment.size)
    segment.damage = find_damage(log)
    intact = [
        (position, header)
        for position, header in every
        if before[position : position + header.size] == after[position : position + header.size]
    ]
    assert list(segment.scan()) == intact
