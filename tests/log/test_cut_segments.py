"""The removal of whole segments by a truncation: their order, in slices, and on a failing disk."""

import copy
import errno

import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.recovery import StoredOffsets, open_log
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID, config_of, create_log, running
from tests.support.log.restart import PARTITION
from tests.support.log.rolling import ObservedDisk
from tests.support.log.slices import turns, unopened_manager

CONFIG = LogConfig(segment_bytes=100, retention_ms=-1, file_delete_delay_ms=60_000)
COMPACTED = LogConfig(segment_bytes=100, cleanup_delete=False, cleanup_compact=True)


@pytest.mark.parametrize("cut", [5, 21, 37, 38])
async def test_kill_during_a_truncation_leaves_the_front_of_the_log(
    autojump_clock, cut: int
) -> None:
    """Invariant 83: compacted logs have gaps, so recovery does not notice a missing segment."""
    disk = ObservedDisk()
    logs = unopened_manager(disk)
    await logs.open(lambda topic: COMPACTED)
    log = logs.create("t", ID, 0, COMPACTED)
    for number in range(40):
        append(log, [b"%d" % number])
    await logs.flush(log)
    before, killed = content(log), []

    def record(kind: str, path: str) -> None:
        if kind in ("rename", "remove", "truncate") and path.startswith("t-0/"):
            killed.append(copy.deepcopy(disk.root))

    disk.on_call = record
    assert await logs.truncate(log, cut)
    assert killed
    for root in killed:
        again = open_log(
            SimDisk(root=root),
            "t-0",
            PARTITION,
            now_ms=TIME_MS,
            config=COMPACTED,
            offsets=StoredOffsets(recovery_point=cut),
        )
        contents = content(again)
        assert contents == before[: len(contents)]
        assert len(contents) >= cut


@pytest.mark.parametrize("offset", [3, 400])
async def test_other_tasks_run_while_a_log_of_300_segments_is_cut(
    autojump_clock, offset: int
) -> None:
    logs = unopened_manager(SimDisk())
    await logs.open(lambda topic: CONFIG)
    log = logs.create("t", ID, 0, CONFIG)
    for _ in range(301):
        append(log, [b"." * 40])
    await logs.flush(log)
    async with turns() as others:
        if offset < log.end_offset:
            assert await logs.truncate(log, offset)
        else:
            assert await logs.restart_at(log, offset)
    assert others.count >= 10
    assert log.end_offset == offset
    assert len(log.segments) == (3 if offset == 3 else 1)


@pytest.mark.parametrize("offset", [3, 100])
async def test_files_of_cut_segments_are_removed_after_the_delay(
    autojump_clock, offset: int
) -> None:
    """The file system needs a while for a gigabyte; so does Kafka's asynchronous deletion."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for _ in range(20):
            append(log, [b"v"])
        calls = len(disk.calls)
        if offset < log.end_offset:
            await logs.truncate(log, offset)
        else:
            await logs.restart_at(log, offset)
        segment_calls = [kind for kind, path in disk.calls[calls:] if ".log" in path]
        assert "rename" in segment_calls
        assert "remove" not in segment_calls
        for _ in range(20):
            append(log, [b"new"])
        await trio.sleep(70)
        entries = {entry.name for entry in disk.entries("t-0")}
        assert not [name for name in entries if name.endswith(".deleted")]
        assert len(content(log)) == (23 if offset == 3 else 20)


async def test_log_that_cannot_be_emptied_does_not_end_the_node(autojump_clock) -> None:
    """Invariant 89: its directory is offline, the checkpoints of the others are written."""
    bad, good = SimDisk(), SimDisk()
    async with running(bad, good) as logs:
        log = await create_log(logs, partition=0)
        other = await create_log(logs, partition=1)
        assert other.disk is not log.disk
        for _ in range(20):
            append(log, [b"v"])
        assert log.disk is bad
        for kind in ("rename", "remove", "create"):
            bad.fail_at(kind, OSError(errno.EIO, "broken"), path="t-0/", times=99)
        with pytest.raises(KafkaStorageError):
            await logs.restart_at(log, 100)
        append(other, [b"v"])
        other.high_watermark = 1
        await trio.sleep(200)
        assert good.read("replication-offset-checkpoint") == b"0\n1\nt 1 1\n"
        assert not logs.directories[0].online


async def test_log_that_cannot_be_emptied_for_want_of_a_descriptor_is_emptied_later(
    autojump_clock,
) -> None:
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config_of("t"))
        for _ in range(20):
            append(log, [b"v"])
        disk.fail_at("create", OSError(errno.EMFILE, "too many"), path=".log", times=9)
        with pytest.raises(KafkaStorageError):
            await logs.restart_at(log, 100)
        await trio.sleep(200)
        disk.mend()
        assert await logs.restart_at(log, 100)
        append(log, [b"new"])
        assert content(log) == [(100, b"new")]


async def test_truncation_below_the_first_segment_empties_the_log(autojump_clock) -> None:
    """The leader of an unclean election may end before the segments that retention has left."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for number in range(20):
            append(log, [b"old"], producer_id=1, producer_epoch=0, base_sequence=number)
        log.high_watermark = 20
        log.advance_log_start(9)
        log.on_removed(log, log.segments[:4], log.drop_segments(4))
        assert log.segments[0].base_offset > 3
        with trio.fail_after(100):
            assert await logs.truncate(log, 3)
        append(log, [b"new"], epoch=1)
        assert content(log) == [(3, b"new")]
