"""Segments that retention removes: invariant 86."""

import pytest

from kwire.log.config import LogConfig
from kwire.log.directories.retention_plan import Deletion, plan
from kwire.log.partition_log import PartitionLog, create
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append

HOUR = 3_600_000


def log_of(*ages_hours: float) -> PartitionLog:
    """Return a log with a segment per age, each of one batch and about 270 bytes."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=300)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for age in ages_hours:
        append(log, [b"v" * 200], timestamp_ms=TIME_MS - int(age * HOUR))
    return log


@pytest.mark.parametrize(
    ("ages", "config", "start", "watermark", "expected"),
    [
        ([5, 4, 1, 0], {}, 0, 4, 2),  # Older than 2 hours.
        ([5, 4, 1, 0], {}, 0, 1, 1),  # Not above the high watermark.
        ([5, 4, 1, 0], {}, 0, 0, 0),
        ([5, 1, 4, 0], {}, 0, 4, 1),  # From the oldest one on, without gaps.
        ([5, -90, 5, 5], {}, 0, 4, 1),  # A future timestamp keeps its segment and later ones.
        ([1, 1, 1, 1], {"retention_bytes": 600}, 0, 4, 1),
        ([1, 1, 1, 1], {"retention_bytes": 1}, 0, 4, 3),  # Never the active one.
        ([5, 5], {"retention_ms": -1}, 0, 2, 0),
        ([5, 5], {"retention_ms": -1, "retention_bytes": 10}, 0, 2, 1),
        ([5, 5, 5], {"cleanup_delete": False, "cleanup_compact": True}, 0, 3, 0),
        ([0, 0, 0], {"cleanup_delete": False}, 2, 3, 2),  # Segments below the log start.
    ],
)
def test_retention_removes_closed_segments_from_the_oldest_on(
    ages, config, start, watermark, expected
) -> None:
    log = log_of(*ages)
    settings = LogConfig(**{"retention_ms": 2 * HOUR, **config})
    deletion = plan(
        log.segments, settings, log_start=start, high_watermark=watermark, now_ms=TIME_MS
    )
    assert deletion == Deletion(expected)


@pytest.mark.parametrize(("watermark", "roll"), [(2, True), (1, False)])
def test_active_segment_is_rolled_and_removed_if_all_records_are_old(
    watermark: int, roll: bool
) -> None:
    log = log_of(5, 5)
    settings = LogConfig(retention_ms=2 * HOUR)
    deletion = plan(log.segments, settings, log_start=0, high_watermark=watermark, now_ms=TIME_MS)
    assert deletion == Deletion(2 if roll else 1, roll=roll)


@pytest.mark.parametrize(("watermark", "roll"), [(2, True), (1, False)])
def test_active_segment_is_rolled_and_removed_if_nothing_may_stay(
    watermark: int, roll: bool
) -> None:
    """Apache Kafka deletes segments as long as what remains is at least ``retention.bytes``."""
    log = log_of(1, 1)
    settings = LogConfig(retention_bytes=0)
    deletion = plan(log.segments, settings, log_start=0, high_watermark=watermark, now_ms=TIME_MS)
    assert deletion == Deletion(2 if roll else 1, roll=roll)


def test_active_segment_with_queued_batches_is_not_removed() -> None:
    """The high watermark covers all that is written, but not the queued batches."""
    log = log_of()
    append(log, [b"written"], timestamp_ms=TIME_MS - 5 * HOUR)
    log.writer.on_queued = lambda: None
    log.disk.slow = True
    append(log, [b"queued"], timestamp_ms=TIME_MS - 5 * HOUR)
    assert (log.writer.written_offset, log.end_offset, len(log.segments)) == (1, 2, 1)
    settings = LogConfig(retention_ms=2 * HOUR)
    arguments = {"log_start": 0, "high_watermark": 1, "now_ms": TIME_MS}
    assert plan(log.segments, settings, **arguments) == Deletion(0)
    log.write_queued()
    arguments["high_watermark"] = 2
    assert plan(log.segments, settings, **arguments) == Deletion(1, roll=True)


def test_records_without_timestamp_have_the_age_of_the_file() -> None:
    log = log_of()
    for _ in range(2):
        append(log, [b"v" * 200], timestamp_ms=-1)
    settings = LogConfig(retention_ms=2 * HOUR)
    for modified, expected in ((TIME_MS - HOUR, 0), (TIME_MS - 3 * HOUR, 1)):
        log.segments[0].modified_ms = modified
        log.segments[1].modified_ms = TIME_MS
        deletion = plan(log.segments, settings, log_start=0, high_watermark=2, now_ms=TIME_MS)
        assert deletion.count == expected
