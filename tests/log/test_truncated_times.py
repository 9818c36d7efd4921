"""Searches by timestamp after a truncation (invariant 17)."""

import pytest

from kwire.log.config import LogConfig
from kwire.log.partition_log import create
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, max_timestamp, offset_for_timestamp


@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("cut", range(1, 9))
def test_remaining_records_are_found_by_timestamp(interval: int, cut: int) -> None:
    """The index has no entry for the last batches."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(index_interval_bytes=interval)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    times = [TIME_MS + (n if n % 3 else 100 - n) for n in range(10)]
    for time in times:
        append(log, [b"v"], timestamp_ms=time)
    log.truncate_to(cut)
    remaining = times[:cut]
    assert max_timestamp(log) == (max(remaining), remaining.index(max(remaining)))
    for time in remaining:
        first = next(n for n, other in enumerate(remaining) if other >= time)
        assert offset_for_timestamp(log, time) == (first, remaining[first])
    append(log, [b"v"], timestamp_ms=TIME_MS + 500)
    assert offset_for_timestamp(log, TIME_MS + 400) == (cut, TIME_MS + 500)
