"""Time indexes whose last entry is wrong: searches by timestamp and retention (invariant 79)."""

import pytest

from kwire.log.config import LogConfig
from kwire.log.directories import retention_plan
from kwire.log.formats import names, offset_index, time_index
from kwire.log.partition_log import PartitionLog, create
from kwire.records.header import HEADER_SIZE
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import (
    TIME_MS,
    append,
    max_timestamp,
    offset_for_timestamp,
    old_format_segment,
)
from tests.support.log.restart import reopen

COUNT = 40
CONFIG = LogConfig(index_interval_bytes=300, retention_ms=1_000)
TIMES = [TIME_MS + 10 * number for number in range(COUNT)]
LAST_MS = TIMES[-1]
NEXT_MS = LAST_MS + 10_000
ENTRY = time_index.ENTRY
FIRST_INDEX = "t-0/" + "0" * 20 + names.TIME_INDEX
FIRST_OFFSETS = "t-0/" + "0" * 20 + names.INDEX
FIRST_LOG = "t-0/" + "0" * 20 + names.LOG


def closed_log(times: list[int] = TIMES, *, has_next: bool = True) -> SimDisk:
    """Return the disk of a log after a clean stop: a segment with these times, and a newer one."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=CONFIG)
    for time in times:
        append(log, [b"v"], timestamp_ms=time)
    if has_next:
        log.roll(TIME_MS)
        append(log, [b"v"], timestamp_ms=NEXT_MS)
    log.finish()
    log.flush_state.flush()
    log.close()
    return disk


def change_last(disk: SimDisk, change: str) -> bytes:
    """Change the last entry of the first segment's time index; return the old index."""
    index = disk.read(FIRST_INDEX)
    largest, offset = ENTRY.unpack(index[-ENTRY.size :])
    entries = {
        "late": ENTRY.pack(largest + 60_000, offset),
        "early": ENTRY.pack(largest - 5, offset),
        "offset": ENTRY.pack(largest, offset - 15),
        "zeros": bytes(ENTRY.size),
        "beyond": ENTRY.pack(largest + 60_000, offset + 1_000),
        "missing": b"",
    }
    disk.write(FIRST_INDEX, index[: -ENTRY.size] + entries[change])
    return index


CHANGES = ["late", "early", "offset", "zeros", "beyond", "missing"]
"""All of these but the zeros leave an index that is in order."""


def open_again(disk: SimDisk, clean: bool) -> PartitionLog:
    end_offset = COUNT + 1
    return reopen(disk, CONFIG, clean=clean, recovery_point=end_offset, high_watermark=end_offset)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_timestamp_of_the_last_record_is_found(change: str, clean: bool) -> None:
    disk = closed_log()
    index = change_last(disk, change)
    log = open_again(disk, clean)
    assert offset_for_timestamp(log, LAST_MS) == (COUNT - 1, LAST_MS)
    assert offset_for_timestamp(log, LAST_MS + 1) == (COUNT, NEXT_MS)
    assert disk.read(FIRST_INDEX) == index


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("age_ms", [1_000, 1_001])
@pytest.mark.parametrize("change", CHANGES)
def test_segment_is_deleted_when_its_last_record_is_old(
    change: str, age_ms: int, clean: bool
) -> None:
    disk = closed_log()
    change_last(disk, change)
    log = open_again(disk, clean)
    deletion = retention_plan.plan(
        log.segments,
        CONFIG,
        log_start=0,
        high_watermark=log.end_offset,
        copied_end=log.copied_end,
        now_ms=LAST_MS + age_ms,
    )
    assert deletion.count == (age_ms > 1_000)


@pytest.mark.parametrize("change", CHANGES)
def test_active_segment_is_searched_and_appended_to(change: str) -> None:
    disk = closed_log(has_next=False)
    change_last(disk, change)
    log = reopen(disk, CONFIG, clean=True, recovery_point=COUNT, high_watermark=COUNT)
    assert max_timestamp(log) == (LAST_MS, COUNT - 1)
    append(log, [b"v"], timestamp_ms=NEXT_MS)
    assert offset_for_timestamp(log, LAST_MS) == (COUNT - 1, LAST_MS)
    assert offset_for_timestamp(log, LAST_MS + 1) == (COUNT, NEXT_MS)


def test_index_with_an_old_largest_timestamp_is_right() -> None:
    """The segment's largest timestamp is that of its first record."""
    disk = closed_log([LAST_MS, *TIMES[:-1]])
    index = disk.read(FIRST_INDEX)
    log = open_again(disk, clean=True)
    disk.calls.clear()
    assert offset_for_timestamp(log, LAST_MS) == (0, LAST_MS)
    assert disk.read(FIRST_INDEX) == index
    assert not any(kind == "write" for kind, _ in disk.calls), "the index has been rebuilt"


@pytest.mark.parametrize("mask", [0x01, 0x80])
@pytest.mark.parametrize("position", range(HEADER_SIZE))
def test_damaged_batch_does_not_spoil_a_right_index(position: int, mask: int) -> None:
    """The last batch's header is damaged: its checksum or the batch before acquits the index."""
    disk = closed_log()
    size = len(disk.read(FIRST_LOG)) // COUNT
    disk.rot(FIRST_LOG, (COUNT - 1) * size + position, mask)
    index = disk.read(FIRST_INDEX)
    log = open_again(disk, clean=True)
    assert log.segments[0].largest_timestamp() == LAST_MS
    assert disk.read(FIRST_INDEX) == index


def test_damaged_batch_does_not_hide_a_wrong_index() -> None:
    """The batches after it still show that the time index lacks its last entry."""
    disk = closed_log()
    index = change_last(disk, "missing")
    _, position = offset_index.ENTRY.unpack(disk.read(FIRST_OFFSETS)[-offset_index.ENTRY_SIZE :])
    size = len(disk.read(FIRST_LOG)) // COUNT
    assert position + size < (COUNT - 1) * size, "the damaged batch is the last one"
    disk.rot(FIRST_LOG, position + size + HEADER_SIZE)
    log = open_again(disk, clean=True)
    assert log.segments[0].largest_timestamp() == LAST_MS
    assert disk.read(FIRST_INDEX) == index


def test_index_of_old_messages_is_kept() -> None:
    """Their headers have none of the fields that could refute it."""
    disk = closed_log()
    disk.write(FIRST_LOG, old_format_segment().replace(b"v", b"\0"))
    index = ENTRY.pack(LAST_MS, 1_000)
    disk.write(FIRST_INDEX, index)
    disk.write(FIRST_OFFSETS, b"")
    log = open_again(disk, clean=True)
    assert log.segments[0].largest_timestamp() == LAST_MS
    assert disk.read(FIRST_INDEX) == index
