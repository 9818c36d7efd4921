"""A process that dies at any call that changes its disk; a write is then half done.

It dies in a compaction pass, which swaps segments, or in a move between directories; the power may
fail as well. Other tests of both kill the process only at renames, removals and syncs, but in more
states.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random

import attrs
import pytest
import trio

from kwire.log.compaction.clean import clean
from kwire.log.config import CleanerSettings
from kwire.log.formats import names
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from simulation.disk import Killed, SimDisk
from simulation.inodes import Inode
from simulation.log.thread_workers import ThreadRunner
from tests.support.log import moving
from tests.support.log.batches import append, content
from tests.support.log.key_logs import put, table
from tests.support.log.moving import create, current, partitions
from tests.support.log.threads import at_once

COMPACTED = attrs.evolve(moving.CONFIG, cleanup_compact=True, cleanup_delete=False)
LEFT_OVER = (names.CLEANED, names.SWAP, names.DELETED, ".tmp")
CHANGES = {"create", "mkdir", "write", "truncate", "allocate", "set_modified"}
CHANGES |= {"sync", "sync_directory", "rename", "remove"}
MOST_CALLS = 1_000


@attrs.define(eq=False)
class Disk(SimDisk):
    """A disk whose process dies before a call, or in the middle of a write."""

    calls_left: int | None = None
    """The number of calls that may still change something."""

    def call(self, kind: str, path: str) -> None:
        if self.calls_left is not None and kind in CHANGES:
            if not self.calls_left:
                raise Killed(path)
            self.calls_left -= 1
        super().call(kind, path)

    def write_bytes(self, path: str, inode: Inode, position: int, data: bytes) -> None:
        if self.calls_left == 0:
            inode.write(position, data[: len(data) // 2])
        super().write_bytes(path, inode, position, data)


async def in_thread(disk: object, call: Callable[[], None]) -> None:
    await at_once(call)


def survivors(seed: int, *disks: Disk) -> list[list[SimDisk]]:
    """Return the disks after a kill, and after a power loss."""
    for disk in disks:
        disk.calls_left = None
    return [
        [disk.after_kill() for disk in disks],
        [disk.power_loss(Random(seed + n)) for n, disk in enumerate(disks)],
    ]


def fill_keys(log: PartitionLog) -> None:
    for number in range(12):
        value = None if number % 5 == 0 else b"value %d" % number
        put(log, b"key%d" % (number % 4), value)
    put(log, b"key0", None)
    log.roll(0)
    put(log, b"last", b"one")
    log.high_watermark = log.end_offset


async def compact(logs: LogManager, log: PartitionLog) -> None:
    cleaning = logs.services[log.disk].cleaning
    await cleaning.clean(log, ThreadRunner(in_thread, clean), CleanerSettings())


async def test_kill_at_any_call_of_a_pass_loses_no_key_and_revives_none(autojump_clock) -> None:
    """Invariants 20, 83 and 87."""
    for calls in count():
        assert calls < MOST_CALLS
        disk = Disk()
        async with moving.running(disk, config=COMPACTED) as logs:
            log = create(logs, COMPACTED)
            fill_keys(log)
            before, end = table(log), log.end_offset
            await logs.flush(log, indexes=True)
            await trio.sleep(100)
            disk.calls_left = calls
            with suppress(Killed):
                await compact(logs, log)
            is_complete = disk.calls_left > 0
            after = survivors(calls, disk)
        for (survivor,) in after:
            async with moving.running(survivor, config=COMPACTED) as logs:
                log = current(logs)
                assert (log.log_start, log.end_offset, table(log)) == (0, end, before), calls
                names_left = [entry.name for entry in survivor.entries("t-0")]
                assert not [name for name in names_left if name.endswith(LEFT_OVER)], calls
                await compact(logs, log)
                assert table(log) == before, calls
        if is_complete:
            break
    assert calls > 50


@pytest.mark.parametrize("is_target", [False, True], ids=["source", "target"])
async def test_kill_at_any_call_of_a_move_loses_nothing(autojump_clock, is_target: bool) -> None:
    """Invariant 83."""
    for calls in count():
        assert calls < MOST_CALLS
        disks = Disk(), Disk()
        crashing = disks[is_target]
        with suppress(BaseExceptionGroup):
            async with moving.running(*disks) as logs:
                log = create(logs)
                for number in range(12):
                    append(log, [b"value %d" % number])
                log.high_watermark = log.end_offset
                await logs.flush(log, indexes=True)
                await trio.sleep(100)
                before = content(log)
                crashing.calls_left = calls
                logs.moves.request(log, logs.directories[1])
                await trio.sleep(200)
        is_complete = (crashing.calls_left or 0) > 0
        for after in survivors(calls, *disks):
            async with moving.running(*after) as logs:
                log = current(logs)
                assert content(log) == before, calls
                # As a node does, whose metadata list the partition: this resumes the move.
                assert logs.create("t", log.topic_id, 0, moving.CONFIG, None) is log
                append(log, [b"one more"])
                await trio.sleep(200)
                log = current(logs)
                assert content(log)[:-1] == before, calls
                assert len(content(log)) == len(before) + 1, calls
                names_left = partitions(after[0]) + partitions(after[1])
                assert not [name for name in names_left if name.endswith("-future")], calls
        if is_complete:
            break
    assert calls > 10
