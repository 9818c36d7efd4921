"""Lookups in a segment whose index has an entry for each append, as Kafka up to 4.0.0 wrote it."""

from pathlib import Path

import pytest

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.formats import names, offset_index
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.header import headers, parse
from kwire.records.iterate import records
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append
from tests.support.log.golden import unpack
from tests.support.log.restart import PARTITION
from tests.support.log.slices import result_of

STEM = "t-0/" + "0" * 20
CONFIG = LogConfig(retention_ms=-1)


@pytest.fixture
def disk(tmp_path: Path) -> SimDisk:
    """Return a disk with the segment that a follower of Kafka 4.0.0 wrote and closed."""
    disk = SimDisk()
    disk.make_directory("t-0")
    for path in unpack("kafka-4.0-follower", tmp_path).glob("t-0/*"):
        disk.write(f"t-0/{path.name}", path.read_bytes())
    return disk


def entries(disk: SimDisk) -> list[tuple[int, int]]:
    return offset_index.entries(disk.read(STEM + names.INDEX), 0)


def start(disk: SimDisk, *, clean: bool) -> PartitionLog:
    stored = StoredOffsets(clean=clean, recovery_point=1000)
    return open_log(disk, "t-0", PARTITION, now_ms=TIME_MS, config=CONFIG, offsets=stored)


def test_the_index_has_entries_for_later_batches_than_the_one_at_the_position(
    disk: SimDisk,
) -> None:
    """Otherwise the tests below would show nothing."""
    data = disk.read(STEM + names.LOG)
    assert sum(parse(data, position).last_offset < last for last, position in entries(disk)) > 30


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_closed", [True, False])
def test_every_offset_and_timestamp_is_found_by_the_index_as_it_is(
    disk: SimDisk, clean: bool, is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 16, 17 and 79: the index is right, so no lookup replaces it."""
    data, index = disk.read(STEM + names.LOG), disk.read(STEM + names.INDEX)
    batches = list(headers(data))
    if is_closed:
        end_offset = batches[-1][1].next_offset
        disk.write(f"t-0/{names.stem(end_offset)}{names.LOG}", b"")
    log = start(disk, clean=clean)
    if not is_closed:
        append(log, [b"next"])
    for position, header in batches:
        for offset in {header.base_offset, header.last_offset}:
            with log.read(offset, 1, end_offset=log.end_offset) as region:
                assert region.position == position
    newest = -1
    for position, header in batches:
        for record in records(data, position, header):
            if record.timestamp > newest:
                newest = record.timestamp
                search = timestamp_search.first_at_least(log, newest)
                expected = timestamp_search.OffsetAndTimestamp(record.offset, newest)
                assert timestamp_search.run(search) == expected
    assert disk.read(STEM + names.INDEX) == index


def test_search_by_time_starts_at_an_entry(disk: SimDisk) -> None:
    """Invariant 79: a search that scans from the start of the segment reads a GiB of headers."""
    log = start(disk, clean=True)
    segment = log.segments[0]
    largest = segment.largest_timestamp()
    assert result_of(timestamp_search.position_of(segment, largest)) > segment.size // 2


@pytest.mark.parametrize("wrong", ["offset", "position", "garbage"])
def test_wrong_entry_is_noticed_and_the_index_is_rebuilt(disk: SimDisk, wrong: str) -> None:
    """Invariant 79."""
    data = disk.read(STEM + names.LOG)
    pairs = entries(disk)
    inside = {h.last_offset for _, h in headers(data) if h.last_offset_delta}
    assert any(last in inside for last, _ in pairs)
    changed = {
        "offset": [(last - (last in inside), at) for last, at in pairs],
        "position": [
            (last, following)
            for (last, _), (_, following) in zip(pairs, [*pairs[1:], pairs[0]], strict=True)
        ],
        "garbage": [(last, at + 7) for last, at in pairs],
    }[wrong]
    disk.write(STEM + names.INDEX, b"".join(offset_index.ENTRY.pack(*pair) for pair in changed))
    batches = list(headers(data))
    disk.write(f"t-0/{names.stem(batches[-1][1].next_offset)}{names.LOG}", b"")
    log = start(disk, clean=True)
    for position, header in batches:
        with log.read(header.base_offset, 1, end_offset=log.end_offset) as region:
            assert region.position == position
