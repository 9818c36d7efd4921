"""The start of the log and of its local segments: equal, unless remote storage has copies."""

import pytest

from kwire.errors import OffsetOutOfRange
from kwire.log.config import LogConfig
from kwire.log.directories.retention_plan import Deletion, plan
from kwire.log.formats import names
from kwire.log.partition_log import Elsewhere, PartitionLog, create
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import create_log, running

HOUR_MS = 3_600_000
END = 10


def log_of_segments() -> PartitionLog:
    """Return a log with a segment per offset; all of its records are committed."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=1, retention_ms=HOUR_MS)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for number in range(END):
        append(log, [b"%d" % number])
    log.high_watermark = END
    return log


def test_local_start_is_the_log_start_while_nothing_is_remote() -> None:
    log = log_of_segments()
    assert (log.log_start, log.local_start) == (0, 0)
    log.advance_log_start(3)
    assert (log.log_start, log.local_start) == (3, 3), "deleted, but the segments are still there"
    log.drop_segments(5)
    assert (log.log_start, log.local_start) == (5, 5)
    log.truncate_fully_at(2)
    assert (log.log_start, log.local_start) == (2, 2)


def test_log_keeps_its_start_when_copied_segments_leave_the_disk() -> None:
    log = log_of_segments()
    log.advance_log_start(2)
    epochs = log.epochs.entries()
    log.copied_end = 8
    log.drop_segments(6)
    assert (log.log_start, log.local_start) == (2, 6)
    assert log.epochs.entries() == epochs
    assert content(log, log.local_start) == [(n, b"%d" % n) for n in range(6, END)]
    for offset in (2, 5):
        with pytest.raises(Elsewhere):
            log.read(offset, 1 << 20, end_offset=END)
    for offset in (1, END + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1 << 20, end_offset=END)


@pytest.mark.parametrize(
    ("copied_end", "log_start", "expected"),
    [
        (None, 0, Deletion(END, roll=True)),
        (0, 0, Deletion(0)),
        (4, 0, Deletion(4)),
        (4, 6, Deletion(6)),  # Deleted records need no copy.
        (END - 1, 0, Deletion(END - 1)),  # The active segment is not copied.
    ],
)
def test_retention_waits_for_copies(
    copied_end: int | None, log_start: int, expected: Deletion
) -> None:
    """Invariant 86."""
    log = log_of_segments()
    deletion = plan(
        log.segments,
        log.config,
        log_start=log_start,
        high_watermark=END,
        copied_end=copied_end,
        now_ms=TIME_MS + 2 * HOUR_MS,
    )
    assert deletion == expected


async def test_retention_removes_only_what_was_copied(autojump_clock) -> None:
    """Invariant 86."""
    async with running(SimDisk()) as logs:
        log = await create_log(logs)
        for _ in range(6):
            append(log, [b"v" * 100], timestamp_ms=0, now_ms=0)
        log.high_watermark = log.end_offset
        log.copied_end = log.segments[2].base_offset
        await logs.retain(log)
        assert (log.log_start, log.local_start) == (0, log.copied_end)


async def test_log_start_that_only_remote_storage_has_is_stored(autojump_clock) -> None:
    """Invariant 39: no name of a segment on this disk tells it."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for _ in range(6):
            append(log, [b"v" * 100], timestamp_ms=0, now_ms=0)
        log.high_watermark = log.end_offset
        log.advance_log_start(1)
        log.copied_end = log.segments[2].base_offset
        await logs.retain(log)
        await logs.flush(log)
        assert not await logs.keep_starts([log])
        assert (log.log_start, log.local_start) == (1, log.copied_end)
        assert b"\nt 0 1\n" in disk.read(names.LOG_STARTS)
