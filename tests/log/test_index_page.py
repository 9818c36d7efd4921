"""Entries of an offset index on disk that are kept for the next lookup."""

import pytest

from kwire.log.config import LogConfig
from kwire.log.disk import File
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog, create
from kwire.log.segments import growing_index
from kwire.log.segments.files import SegmentFiles
from kwire.log.segments.indexes import SegmentIndexes
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, encode
from tests.support.log.restart import PARTITION

CONFIG = LogConfig(index_interval_bytes=0, retention_ms=-1)
COUNT = 3_000


def new_log(disk: SimDisk) -> PartitionLog:
    """Return a log whose batches have one record and an index entry each."""
    disk.make_directory("t-0")
    log = create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=CONFIG)
    fill(log)
    return log


def fill(log: PartitionLog) -> None:
    start = log.end_offset
    for first in range(start, start + COUNT, 100):
        numbers = range(first, first + 100)
        batches = [encode([b"v"], base_offset=n, timestamp_ms=TIME_MS) for n in numbers]
        log.append_follower(b"".join(batches))


def opens_of_index(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the path of each file of an offset index that is opened."""
    opened: list[str] = []
    opening = disk.open

    def open_file(path: str, *, create: bool = False) -> File:
        if names.INDEX in path:
            opened.append(path)
        return opening(path, create=create)

    monkeypatch.setattr(disk, "open", open_file)
    return opened


def read_from_start(log: PartitionLog, count: int) -> None:
    """Read one batch after the other, as a consumer does that begins at the log start."""
    for offset in range(count):
        with log.read(offset, 1, end_offset=log.end_offset) as region:
            assert region.read()[:8] == offset.to_bytes(8, "big")


@pytest.mark.parametrize("is_closed", [False, True])
def test_consumer_from_the_start_opens_the_index_for_every_thousandth_batch(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    log = new_log(disk)
    if is_closed:
        log.roll(TIME_MS)
        log.flush_state.flush()
        log.append_follower(encode([b"v"], base_offset=COUNT, timestamp_ms=TIME_MS))
    opened = opens_of_index(disk, monkeypatch)
    read_from_start(log, 2_000)
    assert 0 < len(opened) <= 6


def test_log_keeps_entries_of_the_last_read_segment_only() -> None:
    log = new_log(SimDisk())
    log.roll(TIME_MS)
    log.flush_state.flush()
    fill(log)
    first, second = log.segments
    for segment, other in ((first, second), (second, first)):
        with log.read(segment.base_offset + 10, 1, end_offset=log.end_offset):
            assert segment.indexes._page is not None
            assert other.indexes._page is None


@pytest.mark.parametrize("is_closed", [False, True])
def test_lookup_after_a_truncation_finds_no_entry_that_was_cut(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_index, "PIECE_ENTRIES", 2)
    disk = SimDisk()
    disk.make_directory("t-0")
    indexes = SegmentIndexes(SegmentFiles(disk, "t-0", 0))
    indexes.start()
    for number in range(1, 10):
        if indexes.has_surplus:
            indexes.spill()
        indexes.add(3 * number, 10 * number, TIME_MS, 3 * number)
    if is_closed:
        indexes.write()
        indexes.drop()
    assert [indexes.floor(relative) for relative in (3, 16)] == [(3, 10), (15, 50)]
    indexes.truncate(10, 10, 35)
    assert [indexes.floor(relative) for relative in (3, 16)] == [(3, 10), (9, 30)]
    indexes.add(16, 38, TIME_MS, 16)
    assert [indexes.floor(relative) for relative in (3, 16)] == [(3, 10), (16, 38)]
