"""Searches by time pause after each read, and leave large reads to a thread."""

import pytest

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog, create
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append


def log_of(segments: int, value: bytes) -> tuple[SimDisk, PartitionLog]:
    """Return a log of segments with one batch each, without the largest timestamps in memory."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=100)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for n in range(segments):
        append(log, [value], timestamp_ms=TIME_MS + n)
    log.flush_state.flush()
    for segment in log.segments[:-1]:
        segment.max_timestamp = -2
    return disk, log


def reads_and_jobs(
    disk: SimDisk, search: timestamp_search.Search
) -> tuple[int, int, timestamp_search.OffsetAndTimestamp | None]:
    """Return the largest number of reads between pauses, the number of jobs, and the result."""
    most, jobs, answer = 0, 0, None
    while True:
        before = len(disk.calls)
        try:
            job = search.send(answer)
        except StopIteration as done:
            return max(most, len(disk.calls) - before), jobs, done.value
        most = max(most, len(disk.calls) - before)
        answer = None
        if job is not None:
            answer, jobs = job.call(), jobs + 1


@pytest.mark.parametrize("kind", ["at least", "youngest"])
def test_search_pauses_between_cold_segments(kind: str) -> None:
    disk, log = log_of(200, b"." * 60)
    if kind == "at least":
        search = timestamp_search.first_at_least(log, TIME_MS + 150)
        expected = timestamp_search.OffsetAndTimestamp(150, TIME_MS + 150)
    else:
        search = timestamp_search.youngest(log)
        expected = timestamp_search.OffsetAndTimestamp(199, TIME_MS + 199)
    most, _, record = reads_and_jobs(disk, search)
    assert record == expected
    assert most < 12


def test_search_reads_a_large_batch_in_a_thread() -> None:
    disk, log = log_of(2, b"." * 300_000)
    _, jobs, record = reads_and_jobs(disk, timestamp_search.first_at_least(log, TIME_MS))
    assert record == timestamp_search.OffsetAndTimestamp(0, TIME_MS)
    assert jobs == 1


def test_cancelled_search_closes_its_file() -> None:
    disk, log = log_of(2, b"." * 300_000)
    search = timestamp_search.first_at_least(log, TIME_MS)
    while next(search) is None:
        pass
    search.close()
    log.segments.release()
    assert not disk.opened
