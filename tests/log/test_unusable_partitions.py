"""A log directory with other files and with partitions that cannot be opened."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from kwire import errors
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.manager import retire_strays
from simulation.disk import SimDisk
from tests.support.log.batches import append, content, old_format_segment
from tests.support.log.manager import OTHER, config_of, create_log, running


async def two_partitions() -> SimDisk:
    disk = SimDisk()
    async with running(disk) as logs:
        for partition in (0, 1):
            log = await create_log(logs, partition=partition)
            for _ in range(3):
                append(log, [b"v"])
            log.high_watermark = 3
        await trio.sleep(100)
    return disk.after_kill()


def spoil(disk: SimDisk) -> bytes:
    """Replace partition 0 by one of a release before Kafka 0.11; return its segment."""
    segment = old_format_segment()
    for entry in disk.entries("t-0"):
        if entry.name != "partition.metadata":
            disk.remove(f"t-0/{entry.name}")
    disk.write("t-0/00000000000000000000.log", segment)
    return segment


async def test_partition_of_an_old_format_does_not_affect_others(autojump_clock) -> None:
    disk = await two_partitions()
    segment = spoil(disk)
    async with running(disk) as logs:
        assert len(content(await create_log(logs, partition=1))) == 3
        with pytest.raises(errors.KafkaStorageError, match="could not be opened"):
            await create_log(logs, partition=0)
        await trio.sleep(100)
    await logs.close()
    assert disk.read("t-0/00000000000000000000.log") == segment, "left as it was"
    assert b"t 0 3\n" in disk.read("replication-offset-checkpoint"), "known for when it opens again"
    names = {entry.name for entry in disk.entries()}
    assert ".kafka_cleanshutdown" not in names, "one partition still has to be recovered"


async def test_topic_of_an_old_format_can_be_recreated(autojump_clock) -> None:
    disk = await two_partitions()
    spoil(disk)
    async with running(disk) as logs:
        log = logs.create("t", OTHER, 0, config_of("t"))
        assert log.end_offset == 0
        await trio.sleep(100)
        assert {e.name for e in disk.entries() if e.is_directory} == {"t-0", "t-1"}


async def test_topic_of_an_old_format_can_be_deleted(autojump_clock) -> None:
    disk = await two_partitions()
    spoil(disk)
    async with running(disk) as logs:
        await logs.delete("t", 0)
        await trio.sleep(100)
        assert {e.name for e in disk.entries() if e.is_directory} == {"t-1"}


async def test_directories_that_are_no_partitions_are_ignored(autojump_clock) -> None:
    """The metadata log, lost+found, a backup; an empty partition directory is a partition."""
    disk = SimDisk()
    for name in ("__cluster_metadata-0", "lost+found", "backup-2", "notes", "bare-0"):
        disk.make_directory(name)
    for name in ("__cluster_metadata-0/00000000000000000000.log", "backup-2/holiday.jpg"):
        disk.write(name, b"not of the logs")
    async with running(disk) as logs:
        assert {str(p) for p in logs.directories[0].logs} == {"bare-0"}
        assert {str(p) for p in await retire_strays(logs, lambda _, __: False)} == {"bare-0"}
        (await create_log(logs, "backup", 1)).high_watermark = 0
    await logs.close()
    assert [e.name for e in disk.entries("__cluster_metadata-0")] == ["00000000000000000000.log"]
    assert [e.name for e in disk.entries("backup-2")] == ["holiday.jpg"]


async def test_file_with_the_name_of_a_partition_does_not_affect_others(
    tmp_path, autojump_clock
) -> None:
    """Another program may have left the file; the log directory stays online."""
    (tmp_path / "t-0").write_text("notes")
    async with running(RealDisk(str(tmp_path))) as logs:
        with pytest.raises(errors.KafkaStorageError):
            await create_log(logs)
        append(await create_log(logs, partition=1), [b"v"])
        (tmp_path / "t-0").unlink()
        append(await create_log(logs), [b"v"])
    logs.abandon()


def move_away(root: Path, replacement: str) -> None:
    """Move a log directory; a file, or the mount point of its volume, may be in its place."""
    root.rename(root.with_name("moved"))
    if replacement == "file":
        root.write_text("notes")
    elif replacement == "mount point":
        root.mkdir()


REPLACEMENTS = pytest.mark.parametrize("replacement", ["nothing", "file", "mount point"])


@REPLACEMENTS
async def test_directory_that_is_moved_away_is_offline(
    tmp_path, autojump_clock, replacement: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    async with running(disk := RealDisk(str(root))) as logs:
        log = await create_log(logs)
        append(log, [b"v"])
        move_away(root, replacement)
        with suppress(OSError):
            await logs.services[disk].checkpoints.write(names.RECOVERY_POINTS)
        assert not logs.directories[0].online
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"v"])
    logs.abandon()


@REPLACEMENTS
async def test_new_partition_does_not_hide_that_its_directory_was_moved_away(
    tmp_path, autojump_clock, replacement: str
) -> None:
    """Invariant 89: its logs would acknowledge records in files that no start finds again."""
    root = tmp_path / "data"
    root.mkdir()
    async with running(RealDisk(str(root))) as logs:
        log = await create_log(logs)
        move_away(root, replacement)
        with pytest.raises(errors.KafkaStorageError):
            await create_log(logs, partition=1)
        assert not logs.directories[0].online
        with pytest.raises(errors.KafkaStorageError):
            append(log, [b"v"])
    logs.abandon()
    assert not (root / "t-1").exists()


async def test_file_in_a_directory_that_is_being_removed_does_not_affect_others(
    tmp_path, autojump_clock, monkeypatch
) -> None:
    """NFS leaves such a file while a removed file is open; the removal is retried."""
    rmdir = os.rmdir

    def rmdir_after_a_rename(path: str, **of: int) -> None:
        monkeypatch.setattr(os, "rmdir", rmdir)
        (directory,) = tmp_path.glob("*-delete")
        (directory / ".nfs0001").touch()
        rmdir(path, **of)

    async with running(RealDisk(str(tmp_path))) as logs:
        log = await create_log(logs, partition=1)
        append(await create_log(logs), [b"v"])
        monkeypatch.setattr(os, "rmdir", rmdir_after_a_rename)
        await logs.delete("t", 0)
        await trio.sleep(100)
        assert os.rmdir is rmdir, "the removal was interrupted"
        append(log, [b"v"])
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"t-1"}
    logs.abandon()


async def test_deleted_records_stay_deleted_after_a_kill(autojump_clock) -> None:
    """Invariant 39: the log start is on disk before DeleteRecords is answered."""
    disk = SimDisk()
    async with running(disk) as logs:
        log = await create_log(logs)
        for _ in range(3):
            append(log, [b"v"] * 2)
        log.high_watermark = 6
        log.advance_log_start(3)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(logs.keep_starts, [log])
        assert disk.read("log-start-offset-checkpoint") == b"0\n1\nt 0 3\n"
    async with running(disk.after_kill()) as logs:
        log = await create_log(logs)
        assert (log.log_start, log.end_offset) == (3, 6)
        assert [offset for offset, _ in content(log)] == [3, 4, 5]


async def test_topic_with_the_name_of_the_metadata_log_never_touches_its_directory(
    autojump_clock,
) -> None:
    """An earlier version let clients create such a topic; deleting it removed the metadata log."""
    disk = SimDisk()
    disk.make_directory("__cluster_metadata-0")
    disk.write("__cluster_metadata-0/00000000000000000000.log", b"metadata")
    async with running(disk) as logs:
        with pytest.raises(errors.KafkaStorageError, match="is the name of the metadata log"):
            await create_log(logs, "__cluster_metadata")
        await logs.delete("__cluster_metadata", 0)
        await trio.sleep(100)
    assert disk.read("__cluster_metadata-0/00000000000000000000.log") == b"metadata"
    assert [e.name for e in disk.entries("__cluster_metadata-0")] == ["00000000000000000000.log"]


async def test_deleted_partition_keeps_its_index_files(autojump_clock) -> None:
    """Kafka logs errors for segments without them, if it opens the directory meanwhile."""
    disk = SimDisk()
    async with running(disk) as logs:
        append(await create_log(logs), [b"v"])
        await logs.delete("t", 0)
        (marked,) = [e.name for e in disk.entries() if e.name.endswith("-delete")]
        stem = "00000000000000000000"
        assert {f"{stem}.index", f"{stem}.timeindex"} <= {e.name for e in disk.entries(marked)}
