"""Disks that refuse to rename the files of removed segments: retention, DeleteRecords, truncation.

A segment leaves the log only once its log file has another name; otherwise deleted records would be
back after a restart.
"""

import copy
import errno
import logging
from random import Random

import attrs
import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.aborted_transactions import find_aborted
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content, end_transaction
from tests.support.log.manager import create_log, running
from tests.support.log.restart import PARTITION

NO_ROOM = OSError(errno.ENOSPC, "no space left")
NO_DESCRIPTORS = OSError(errno.EMFILE, "too many")
BROKEN = OSError(errno.EIO, "broken")
REFUSALS = pytest.mark.parametrize(
    ("error", "times"),
    [(NO_ROOM, 2), (NO_ROOM, 99), (NO_DESCRIPTORS, 1), (NO_DESCRIPTORS, 99), (BROKEN, 1)],
    ids=["no room once", "no room", "no descriptor once", "no descriptors", "broken"],
)
STEPS = range(32)
"""The renames of five segments, each of which has up to six files, and one more."""
Records = list[tuple[int, bytes | None]]


async def fill(logs: LogManager) -> PartitionLog:
    """Return a log of aborted transactions with snapshots, all synced.

    The last of its six segments is younger than the others.
    """
    log = await create_log(logs)
    log.configure(attrs.evolve(log.config, segment_bytes=1 << 20, retention_ms=-1))
    for number in range(12):
        time_ms = TIME_MS + 10**9 * (number > 9)
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": number}
        append(log, [b"%d" % number], timestamp_ms=time_ms, transactional=True, **fields)
        end_transaction(log, 1, commit=False)
        if number % 2 and number < 11:
            log.roll(TIME_MS)
    log.high_watermark = log.end_offset
    await logs.flush(log)
    await trio.sleep(1)
    assert len(log.segments) == 6
    return log


def check_restarts(
    disk: SimDisk, log: PartitionLog, *, is_cut: bool = False, log_start: int = 0
) -> None:
    """Check that a restart finds what the log has now, and that a power loss loses none of it.

    A power loss may undo the latest renames, which ``log_start``, if it was stored, makes up
    for. After a cut the older records come first.
    """
    expected = content(log)

    def restart(survivor: SimDisk) -> Records:
        point = log.flush_state.recovery_point
        offsets = StoredOffsets(recovery_point=point, log_start=log_start)
        return content(
            open_log(survivor, "t-0", PARTITION, now_ms=TIME_MS, config=log.config, offsets=offsets)
        )

    assert restart(SimDisk(root=copy.deepcopy(disk.root))) == expected
    for seed in range(3):
        records = restart(disk.power_loss(Random(seed)))
        offsets = [offset for offset, _ in records]
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        part = records[: len(expected)] if is_cut else records[-len(expected) :]
        assert part == expected
        assert records == expected or not log_start


@REFUSALS
@pytest.mark.parametrize("by", ["age", "deletion"])
async def test_deleted_records_stay_deleted_if_the_disk_refuses_a_rename(
    autojump_clock, error: OSError, times: int, by: str
) -> None:
    """Invariants 83 and 86; a refusal takes the directory offline only if it is broken."""
    for step in STEPS:
        disk = SimDisk()
        async with running(disk) as logs:
            log = await fill(logs)
            before, last = content(log), log.segments.active.base_offset
            if by == "age":
                log.configure(attrs.evolve(log.config, retention_ms=500))
            else:
                log.advance_log_start(last)
                assert not await logs.keep_starts([log])
            disk.fail_at("rename", error, path="t-0/", after=step, times=times)
            deleted = await logs.retain(log)
            if logs.directories[0].online:
                assert len(log.segments) == 6 - deleted
            assert log.log_start == (last if by == "deletion" else log.segments[0].base_offset)
            assert content(log) == [r for r in before if r[0] >= log.log_start]
            check_restarts(disk, log, log_start=last if by == "deletion" else 0)
            assert logs.directories[0].online == (disk.failed is None)
            assert disk.failed is None or error is BROKEN
            if logs.directories[0].online:
                disk.mend()
                await trio.sleep(400)
                assert [segment.base_offset for segment in log.segments] == [last]
                stems = {entry.name[:20] for entry in disk.entries("t-0") if entry.name[0] == "0"}
                assert {int(stem) for stem in stems} <= {last, log.end_offset}


async def test_retention_that_the_disk_refuses_is_reported_once_and_tried_again(
    autojump_clock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = await fill(logs)
        before = content(log)
        log.configure(attrs.evolve(log.config, retention_ms=500))
        disk.fail_at("rename", NO_DESCRIPTORS, path="t-0/", times=2)
        for _ in range(2):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert await logs.retain(log) == 0
            assert [record.msg.split(" partition")[0] for record in caplog.records] == [
                "retention failed"
            ]
            assert content(log) == before
        assert await logs.retain(log) == 5


def check_cut(log: PartitionLog, before: Records) -> None:
    """Check that a log that may have been cut in part is whole, and that it can go on."""
    remaining = content(log)
    assert remaining == [record for record in before if log.log_start <= record[0] < log.end_offset]
    assert log.writer.written_offset == log.end_offset
    assert log.high_watermark <= log.end_offset
    assert log.flush_state.recovery_point <= log.end_offset
    assert max(log.snapshots.offsets, default=0) <= log.end_offset
    state = log.producers.get(1)
    aborted = find_aborted(log.segments, log.log_start, log.end_offset)
    assert [entry.first_offset for entry in aborted] == [
        offset for offset, value in remaining if value is not None and value.isdigit()
    ]
    sequences = [int(value) for _, value in remaining if value is not None and value.isdigit()]
    assert (None if state is None else state.last_sequence) == sequences[-1]


async def cut(logs: LogManager, log: PartitionLog, offset: int) -> bool:
    """Truncate the log to ``offset``, or above its end restart it there; return whether it ends."""
    try:
        if offset < log.end_offset:
            await logs.truncate(log, offset)
        else:
            await logs.restart_at(log, offset)
    except KafkaStorageError:
        assert log.end_offset != offset
    return log.end_offset == offset


@REFUSALS
@pytest.mark.parametrize("offset", [2, 100])
async def test_cut_that_the_disk_refuses_leaves_a_whole_log(
    autojump_clock, error: OSError, times: int, offset: int
) -> None:
    """Invariants 83 and 84: otherwise the next batch would follow a gap."""
    for step in STEPS:
        disk = SimDisk()
        async with running(disk) as logs:
            log = await fill(logs)
            before = content(log)
            disk.fail_at("rename", error, path="t-0/", after=step, times=times)
            is_cut = await cut(logs, log, offset)
            if not logs.directories[0].online:
                continue
            if not is_cut:
                check_cut(log, before)
                check_restarts(disk, log, is_cut=offset == 2)
            disk.mend()
            log_start, end_offset = log.log_start, log.end_offset
            append(log, [b"more"])
            assert content(log) == [*before[log_start:end_offset], (end_offset, b"more")]
            assert await cut(logs, log, offset) or is_cut
            assert content(log) == before[log.log_start : log.end_offset]
