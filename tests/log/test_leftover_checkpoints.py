"""Checkpoints that still name a deleted partition after a crash, and a new log of its name."""

import errno
from random import Random

import pytest

from kwire.log.formats import checkpoints, names
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import append, content
from tests.support.log.manager import ID, OTHER, config_of, running

PARTITION = TopicPartition("t", 0)
FILES = (
    names.RECOVERY_POINTS,
    names.LOG_STARTS,
    names.HIGH_WATERMARKS,
    names.CLEANER_OFFSETS,
)


def disk_naming(offset: int, *files: str) -> SimDisk:
    """Return a disk without partitions, on which these checkpoints name one."""
    disk = SimDisk()
    text = checkpoints.offsets_text([checkpoints.offset_line(PARTITION, offset)])
    for file in files:
        disk.replace(file, text, sync=True)
    return disk


@pytest.mark.parametrize("file", [*FILES, None])
@pytest.mark.parametrize("offset", [3, 99])
async def test_new_log_keeps_its_records_and_is_all_dirty(
    autojump_clock: object, file: str | None, offset: int
) -> None:
    disk = disk_naming(offset, *(FILES if file is None else (file,)))
    async with running(disk) as logs:
        log = logs.create("t", OTHER, 0, config_of("t"))
        for number in range(9):
            append(log, [b"%d" % number])
        await logs.flush(log, indexes=True)
        survivors = [disk.after_kill(), *(disk.power_loss(Random(n)) for n in range(5))]
    for survivor in survivors:
        async with running(survivor) as logs:
            reopened = logs.get("t", 0)
            assert reopened is not None
            assert [value for _, value in content(reopened)] == [b"%d" % n for n in range(9)]
            assert reopened.log_start == 0
            assert reopened.clean_state.clean_end is None


async def test_log_of_a_recreated_topic_outlives_two_crashes(autojump_clock: object) -> None:
    """The first crash comes before the deleted log's start offset has left the checkpoint."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        for number in range(60):
            append(log, [b"%d" % number])
        log.high_watermark = log.end_offset
        log.advance_log_start(59)
        assert not await logs.keep_starts([log])
        await logs.delete("t", 0)
        disk = disk.after_kill()
    async with running(disk) as logs:
        log = logs.create("t", OTHER, 0, config_of("t"))
        append(log, [b"new"])
        await logs.flush(log, indexes=True)
        disk = disk.after_kill()
    async with running(disk) as logs:
        reopened = logs.get("t", 0)
        assert reopened is not None
        assert content(reopened) == [(0, b"new")]


async def test_start_on_a_full_disk_forgets_a_wrong_cleaner_checkpoint(
    autojump_clock: object,
) -> None:
    """Invariant 88: a start needs no space; a checkpoint past the log's end would hide new keys."""
    disk = SimDisk()
    async with running(disk) as logs:
        append(logs.create("t", ID, 0, config_of("t")), [b"v"])
    disk = disk.after_kill()
    text = checkpoints.offsets_text([checkpoints.offset_line(PARTITION, 3)])
    disk.replace(names.CLEANER_OFFSETS, text, sync=True)
    no_room = OSError(errno.ENOSPC, "no space left")
    disk.fail_at("write", no_room, path=names.CLEANER_OFFSETS, times=2)
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        assert len(content(log)) == 1
        for _ in range(9):
            append(log, [b"v"])
    async with running(disk.after_kill()) as logs:
        assert not logs.create("t", ID, 0, config_of("t")).clean_state.clean_end
