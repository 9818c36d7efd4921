"""An fsync that fails: the kernel reports it once, and then counts the lost pages as clean."""

import errno
import os
from random import Random

import attrs
import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import RealDisk
from kwire.log.recovery import StoredOffsets, open_log
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.inodes import PAGE
from tests.support.log.batches import TIME_MS, append, content
from tests.support.log.manager import ID, OTHER, running

BROKEN = OSError(errno.EIO, "unwritable sector")
SEEDS = range(20)
CONFIG = LogConfig(flush_messages=1)


def contents(disk: SimDisk, path: str) -> set[bytes]:
    """Return the contents that a file can have after the loss of power."""
    return {bytes(disk.power_loss(Random(seed)).inode(path).data) for seed in SEEDS}


def test_simulated_kernel_drops_pages_after_a_failed_sync() -> None:
    """A second sync succeeds without writing the lost pages; it writes only later ones."""
    disk = SimDisk()
    file = disk.open("a", create=True)
    file.write([b"1" * PAGE], 0)
    file.sync()
    disk.sync_directory()
    file.write([b"2" * PAGE], PAGE)
    disk.fail_at("sync", BROKEN)
    with pytest.raises(OSError, match="unwritable"):
        file.sync()
    disk.failed = None  # As if the failure had gone unnoticed.
    file.write([b"3" * PAGE], 2 * PAGE)
    file.sync()
    assert file.read(PAGE, 1) == b"2", "the page cache still has it"
    assert contents(disk, "a") == {b"1" * PAGE + bytes(PAGE) + b"3" * PAGE}


def test_offline_directory_refuses_a_sync_without_a_system_call() -> None:
    """The pages stay dirty: the next process may sync them."""
    disk = SimDisk()
    disk.write("a", b"1")
    disk.failed = BROKEN
    with pytest.raises(OSError, match="offline"):
        disk.sync("a")
    after = disk.after_kill()
    after.sync("a")
    after.sync_directory()
    assert contents(after, "a") == {b"1"}


async def test_no_record_counts_as_synced_after_a_failed_sync(autojump_clock) -> None:
    """Invariant 89: neither the records of that sync nor later ones, also not in a checkpoint."""
    broken, good = SimDisk(), SimDisk()
    offline: list[LogDirectory] = []
    async with running(broken, good) as logs:
        logs.subscribe(on_offline=offline.append)
        bad, fine = logs.create("t", ID, 0, CONFIG), logs.create("u", OTHER, 0, CONFIG)
        append(bad, [b"synced"])
        await logs.flush(bad)
        await trio.sleep(100)
        checkpoint = broken.read("recovery-point-offset-checkpoint")
        append(bad, [b"lost" * PAGE])
        broken.fail_at("sync", BROKEN, path="t-0/")
        for _ in range(3):  # For the kernel the second one would succeed.
            with pytest.raises(KafkaStorageError):
                await logs.flush(bad)
            assert bad.flush_state.recovery_point == 1
        assert [directory.name for directory in offline] == ["dir0"]
        with pytest.raises(KafkaStorageError):
            append(bad, [b"refused"])
        append(fine, [b"v"])
        await logs.flush(fine)
        await trio.sleep(100)
        assert bad.flush_state.recovery_point == 1
        assert fine.flush_state.recovery_point == 1
        assert broken.read("recovery-point-offset-checkpoint") == checkpoint
    await logs.close()
    assert ".kafka_cleanshutdown" not in broken.files
    assert ".kafka_cleanshutdown" in good.files
    for seed in SEEDS:
        async with running(broken.power_loss(Random(seed))) as logs:
            again = logs.create("t", ID, 0, CONFIG)
            assert content(again) == [(0, b"synced")]


@pytest.mark.parametrize("call", [".log", ".index", ".snapshot", "leader-epoch-checkpoint"])
async def test_failed_sync_of_any_file_takes_the_directory_offline(
    autojump_clock, call: str
) -> None:
    """Invariant 89: also of the files beside the records; a restart has the durable records."""
    disk = SimDisk()
    config = attrs.evolve(CONFIG, segment_bytes=200)
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, config)
        for number in range(4):
            append(log, [b"%d" % number], epoch=number, producer_id=1, base_sequence=number)
        await logs.flush(log)
        await trio.sleep(100)
        before = content(log)
        for number in range(4, 8):
            append(log, [b"%d" % number], epoch=number, producer_id=1, base_sequence=number)
        disk.fail_at("sync", BROKEN, path=call)
        with pytest.raises(KafkaStorageError):
            await logs.flush(log, indexes=True)
        assert log.flush_state.recovery_point == 4
        assert not logs.directories[0].online
    for seed in SEEDS:
        again = open_log(
            disk.power_loss(Random(seed)),
            "t-0",
            TopicPartition("t", 0),
            now_ms=TIME_MS,
            config=config,
            offsets=StoredOffsets(recovery_point=4),
        )
        after = content(again)
        assert after[:4] == before
        assert after == [(n, b"%d" % n) for n in range(len(after))]


async def fail_a_sync(disk: SimDisk, path: str) -> list[tuple[int, bytes | None]]:
    """Append synced records, then lose the sync of later ones; return all of them."""
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        append(log, [b"synced"])
        if path != "partition.metadata":
            await logs.flush(log)
        await trio.sleep(100)
        append(log, [b"not on the disk" * PAGE], epoch=3)
        disk.fail_at("sync", BROKEN, path=path)
        with pytest.raises(KafkaStorageError):
            await logs.flush(log)
        records = content(log)
    await logs.close()
    assert ".kafka_cleanshutdown" not in disk.files
    return records


@pytest.mark.parametrize("path", [".log", "leader-epoch-checkpoint", "partition.metadata"])
@pytest.mark.parametrize("stop", [False, True], ids=["acknowledged", "clean stop"])
async def test_restart_makes_durable_what_a_failed_sync_left_in_the_page_cache(
    autojump_clock, path: str, stop: bool
) -> None:
    """Invariant 89: for the kernel these pages are clean, so a sync alone would not write them."""
    disk = SimDisk()
    records = await fail_a_sync(disk, path)
    disk = disk.after_kill()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        assert content(log) == records
        append(log, [b"acknowledged"], epoch=3)
        await logs.flush(log, log.end_offset)
        records, epochs = content(log), log.epochs.entries()
    if stop:
        await logs.close()
    for seed in SEEDS:
        async with running(disk.power_loss(Random(seed))) as logs:
            again = logs.create("t", ID, 0, CONFIG)
            assert content(again) == records
            assert again.epochs.entries() == epochs


async def test_each_start_after_a_failed_sync_writes_again_until_one_has_synced(
    autojump_clock,
) -> None:
    """Invariant 89: the second sync to fail is one of the start itself."""
    disk = SimDisk()
    records = await fail_a_sync(disk, ".log")
    disk = disk.after_kill()
    disk.fail_at("sync", BROKEN, path=".log")
    async with running(disk) as logs:
        assert not logs.directories[0].online
    await logs.close()
    disk = disk.after_kill()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        assert log.flush_state.recovery_point == log.end_offset
    for seed in SEEDS:
        async with running(disk.power_loss(Random(seed))) as logs:
            assert content(logs.create("t", ID, 0, CONFIG)) == records
    disk = disk.after_kill()
    async with running(disk) as logs:
        assert not [path for kind, path in disk.calls if kind == "write" and ".log" in path]


async def stop_without_a_sync(number: int) -> SimDisk:
    """Return a disk after a stop in which the sync of this number of a directory fails."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = logs.create("t", ID, 0, CONFIG)
        append(log, [b"v"])
        await logs.flush(log)
    disk.fail_at("sync_directory", BROKEN, after=number)
    await logs.close(broker_epoch=7)
    return disk


async def test_stop_whose_last_sync_failed_is_not_clean(autojump_clock) -> None:
    """Invariants 81 and 89: the marker's name is there, but not durable."""
    disks = [await stop_without_a_sync(number) for number in range(12)]
    marked = [d for d in disks if ".kafka_cleanshutdown" in d.files and d.failed is not None]
    assert len(marked) == 1
    async with running(marked[0].after_kill()) as logs:
        assert logs.previous_epoch == -1
        assert content(logs.create("t", ID, 0, CONFIG)) == [(0, b"v")]


def test_real_disk_marks_a_failed_sync(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 89: only for the next start, so the mark itself need not be durable."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)

    def fail(fd: int) -> None:
        raise BROKEN

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="unwritable"):
            file.sync()
    file.close()
    after = RealDisk(str(tmp_path))
    assert LogDirectory(after, "dir").has_failed_sync()
