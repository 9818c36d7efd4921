"""Checkpoints are written after every change, also one made during another write."""

import errno
from collections.abc import Callable
from functools import partial

import pytest
import trio

from kwire.log.directories.checkpointing import Checkpointer
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import Disk
from kwire.log.formats import names
from kwire.log.threads import DiskThreads
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import append
from tests.support.log.manager import ID, config_of, running

SLOW_S = 20


def written_files(call: Callable[[], None]) -> set[str]:
    """Return the names of the checkpoint files that a thread's call writes."""
    is_partial = isinstance(call, partial) and call.func.__name__ == "write_checkpoints"
    return {name for name, _ in call.args[0]} if is_partial else set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("slow", [names.RECOVERY_POINTS, names.HIGH_WATERMARKS])
@pytest.mark.parametrize("at_s", range(50, 90, 3))
async def test_change_during_a_slow_checkpoint_is_written_by_the_next_one(
    autojump_clock, slow: str, at_s: int
) -> None:
    """Invariants 81 and 82: no later change of the log would cause another checkpoint."""
    disk = SimDisk()

    async def run_slowly(call: Callable[[], None]) -> None:
        if slow in written_files(call):
            await trio.sleep(SLOW_S)
        call()

    async with running(disk) as logs:
        logs.threads.stand_in = run_slowly
        log = logs.create("t", ID, 0, config_of("t"))
        append(log, [b"v"])
        await trio.sleep(at_s)
        append(log, [b"v"])
        append(log, [b"v"])
        log.high_watermark = 3
        log.roll(1)
        log.advance_log_start(2)
        await trio.sleep(200)
        assert disk.read(names.RECOVERY_POINTS) == b"0\n1\nt 0 3\n"
        assert disk.read(names.LOG_STARTS) == b"0\n1\nt 0 2\n"
        assert disk.read(names.HIGH_WATERMARKS) == b"0\n1\nt 0 3\n"


async def test_checkpoint_that_was_replaced_and_not_synced_is_written_again(autojump_clock) -> None:
    """Invariant 82: the file on the disk may be the old or the new one."""
    disk = SimDisk()
    directory = LogDirectory(disk, "a")
    directory.load(config_of, 0).close()
    checkpointer = Checkpointer(directory, Clock(), DiskThreads().run)
    log = directory.create(TopicPartition("t", 0), ID, config_of("t"), 0)
    append(log, [b"v"] * 3)
    log.high_watermark = 1
    assert await checkpointer.write(names.HIGH_WATERMARKS)
    log.high_watermark = 2
    disk.fail_at("open", OSError(errno.EMFILE, "too many"), after=1, times=9)
    assert not await checkpointer.write(names.HIGH_WATERMARKS)
    disk.mend()
    assert disk.read(names.HIGH_WATERMARKS) == b"0\n1\nt 0 2\n", "the replacement itself has failed"
    log.high_watermark = 1
    assert await checkpointer.write(names.HIGH_WATERMARKS)
    assert disk.read(names.HIGH_WATERMARKS) == b"0\n1\nt 0 1\n"


async def test_marker_of_a_partition_that_was_made_again_meanwhile_stays() -> None:
    """Invariants 40 and 82: else the new log would begin at the old one's start offset."""
    disk, partition = SimDisk(), TopicPartition("t", 0)
    directory = LogDirectory(disk, "a")
    directory.load(config_of, 0).close()

    def make_again(number: int) -> None:
        directory.retire(partition, bytes([number] * 16), "-delete")
        directory.create(partition, bytes([number] * 16), config_of("t"), 0)

    async def make_again_first(disk: Disk, call: Callable[[], None]) -> None:
        if not written_files(call):
            make_again(2)
        call()

    directory.create(partition, ID, config_of("t"), 0)
    make_again(1)
    checkpointer = Checkpointer(directory, Clock(), make_again_first)
    files = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS)
    assert await checkpointer.write(*files)
    assert names.NAMED_AGAIN in {entry.name for entry in disk.entries("t-0")}
