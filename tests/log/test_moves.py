"""Logs move between the log directories of a broker, and lose nothing at any crash."""

from contextlib import suppress
from random import Random

import pytest
import trio

from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from tests.support.log.batches import append, content
from tests.support.log.moving import CONFIG, create, current, partitions, running


def fill(log: PartitionLog, count: int = 30, epoch: int = 0) -> None:
    for number in range(count):
        append(log, [b"value %d" % number], epoch=epoch)
    log.high_watermark = log.end_offset


async def test_moved_log_has_the_same_bytes_in_the_same_segments(autojump_clock) -> None:
    first, second = SimDisk(), SimDisk()
    async with running(first, second) as logs:
        log = create(logs)
        fill(log)
        fill(log, epoch=3)
        log.advance_start(5)
        before = content(log)
        files = {
            segment.base_offset: first.read(segment.files.path(names.LOG))[: segment.size]
            for segment in log.segments
        }
        logs.moves.request(log, logs.directories[1])
        await trio.sleep(10)
        moved = current(logs)
        assert moved.disk is second
        assert content(moved) == before
        assert (moved.start_offset, moved.end_offset, moved.high_watermark) == (5, 60, 60)
        assert moved.epochs.entries() == log.epochs.entries()
        assert {
            segment.base_offset: second.read(segment.files.path(names.LOG))[: segment.size]
            for segment in moved.segments
        } == files
        assert partitions(first) == ["t-0-delete"]
        assert partitions(second) == ["t-0"]
        await trio.sleep(100)
        assert partitions(first) == []
        assert names.MOVED_HERE not in [e.name for e in second.entries("t-0")]
    async with running(first.after_kill(), second.after_kill()) as logs:
        assert content(current(logs)) == before


CHANGES = range(70)


@pytest.mark.parametrize("is_target", [False, True], ids=["source", "target"])
@pytest.mark.parametrize("changes", CHANGES)
async def test_crash_at_any_step_of_a_move_loses_nothing(
    autojump_clock, changes: int, is_target: bool
) -> None:
    """The process dies at a rename, removal or sync in either directory, or the power fails."""
    first, second = SimDisk(), SimDisk()
    crashing = second if is_target else first
    with suppress(BaseExceptionGroup):
        async with running(first, second) as logs:
            log = create(logs)
            fill(log, 12)
            await logs.flush(log, indexes=True)
            await trio.sleep(100)
            before = content(log)
            crashing.changes_left = changes
            logs.moves.request(log, logs.directories[1])
            await trio.sleep(200)
    is_complete = (crashing.changes_left or 0) > 0
    first.changes_left = second.changes_left = None
    survivors = [(first.after_kill(), second.after_kill())]
    survivors += [(first.power_loss(Random(n)), second.power_loss(Random(n))) for n in range(6)]
    for disks in survivors:
        async with running(*disks) as logs:
            log = current(logs)
            assert content(log) == before
            assert log is logs.create("t", log.topic_id, 0, CONFIG, None)
            append(log, [b"one more"])
            await trio.sleep(200)
            log = current(logs)
            assert content(log)[:-1] == before
            assert len(content(log)) == len(before) + 1
            assert not [name for name in partitions(disks[1]) if name.endswith("-future")]
            assert not [name for name in partitions(disks[0]) if name.endswith("-future")]
    assert is_complete or changes < CHANGES[-1]
