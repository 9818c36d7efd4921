"""The last entry of a time index, from which retention by time learns how old a segment is."""

import pytest

from kwire.log.cold import WouldWait
from kwire.log.config import LogConfig
from kwire.log.formats import names, time_index
from kwire.log.partition_log import PartitionLog
from kwire.log.retention_plan import plan
from kwire.log.segments import warming
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append
from tests.support.log.restart import CONFIG, reopen

YOUNG = TIME_MS - 1_000
RETAINED = LogConfig(segment_bytes=200, index_interval_bytes=50, retention_ms=10_000)


def with_last_entry(timestamp: int, relative: int) -> PartitionLog:
    """Return a log after a crash that has left this entry at the end of the first time index."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    for number in range(9):
        append(log, [b"value"], timestamp_ms=YOUNG + number)
    log.flush_state.flush()
    assert len(log.segments) > 3
    log.high_watermark = log.end_offset
    path = f"t-0/{names.stem(0)}{names.TIME_INDEX}"
    entry = time_index.ENTRY.pack(timestamp, relative)
    disk = disk.after_kill()
    disk.write(path, disk.read(path)[: -time_index.ENTRY_SIZE] + entry)
    return reopen(disk, CONFIG, recovery_point=9, high_watermark=9)


WRONG = [
    pytest.param(YOUNG - 100_000, 1, id="too old"),
    pytest.param(YOUNG + 100_000, 1, id="too young"),
    pytest.param(YOUNG + 1, 7, id="a later offset"),
    pytest.param(YOUNG + 9, 0, id="another offset"),
]


@pytest.mark.parametrize(("timestamp", "relative"), WRONG)
def test_young_records_outlive_a_wrong_last_entry(timestamp: int, relative: int) -> None:
    """Invariants 79 and 86: the entry is compared with the batch that it names."""
    log = with_last_entry(timestamp, relative)
    log.configure(RETAINED)
    deletion = plan(
        log.segments, RETAINED, log_start=0, high_watermark=log.high_watermark, now_ms=TIME_MS
    )
    assert deletion.count == 0
    largest = [segment.largest_timestamp() for segment in log.segments]
    assert largest == sorted(largest)
    assert YOUNG <= largest[0] < YOUNG + 9


@pytest.mark.parametrize(("timestamp", "relative"), WRONG)
def test_thread_rebuilds_an_index_with_a_wrong_last_entry(timestamp: int, relative: int) -> None:
    """Invariant 79: the event loop does not read a whole segment."""
    log = with_last_entry(timestamp, relative)
    segment = log.segments[0]
    with pytest.raises(WouldWait):
        segment.largest_timestamp(wait=False)
    warming.ages(segment)()
    assert segment.repair is not None
    assert segment.repair.built is not None
    assert YOUNG <= segment.largest_timestamp(wait=False) < YOUNG + 9


def test_right_last_entry_is_believed() -> None:
    log = with_last_entry(YOUNG + 1, 1)
    segment = log.segments[0]
    for _ in range(2):
        warming.ages(segment)()
        assert segment.largest_timestamp() == YOUNG + 1
        warming.lookups(segment, 0)()
        assert segment.repair is None or segment.repair.built is None
