"""Starts of directories with many logs, and of logs with many files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn, pack
from kwire.log.manager import (
    LogManager,
    delete_unassigned,
    find_duplicates,
    retire_outdated,
    retire_strays,
)
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk, SimFile
from simulation.inodes import Directory, Inode
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.manager import ID
from tests.support.turns.table import Scene
from tests.turns.logs import Logs, fill, idempotent, logs_of_a_directory

STARTED: Final = Scene("starts of logs", logs_of_a_directory)
row = STARTED.operation
SMALL_SEGMENTS: Final = LogConfig(segment_bytes=100)
"""Each batch begins a segment."""
IDS: Final = bytes(15) + b"a", bytes(15) + b"b"
READ_MAX: Final = 256 * 1024
"""The most bytes of one read on the event loop: about 0.1 ms from the page cache."""


def manager_of(logs: Logs, disk: SimDisk) -> LogManager:
    return LogManager(
        [LogDirectory(disk, "data")], Clock(), threads=DiskThreads(logs.meter.in_thread)
    )


async def start(logs: Logs, disk: SimDisk, config: LogConfig) -> LogManager:
    """Start a node's logs, measured."""
    manager = manager_of(logs, disk)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await manager.open(lambda _: config)
    return manager


def copy_of(directory: Directory) -> Directory:
    """Return a directory with copies of the same files."""
    files: dict[str, Inode | Directory] = {
        name: Inode(bytearray(node.data), node.durable)
        for name, node in directory.names.items()
        if isinstance(node, Inode)
    }
    return Directory(files, dict(files))


@row("start of a directory", "logs", 10_000)
async def start_many(logs: Logs, size: int) -> None:
    """Its checkpoints also name as many deleted logs, and that of the cleaner is ahead."""
    disk = SimDisk()
    before = manager_of(logs, disk)
    await before.open(lambda _: LogConfig())
    fill(before.create("many", ID, 0, LogConfig()), 1)
    await before.close()
    first = disk.root.directory("many-0")
    for number in range(1, size):
        disk.root.names[f"many-{number}"] = copy_of(first)
    lines = [f"{topic} {number} 5\n" for topic in ("many", "old") for number in range(size)]
    for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS):
        disk.write(name, f"0\n{2 * size}\n{''.join(lines)}".encode())
    again = await start(logs, disk, LogConfig())
    directory = again.directories[0]
    assert len(directory.logs) == len(directory.retired) == size
    assert all(log.high_watermark == 1 for log in directory.logs.values())
    assert disk.read(names.CLEANER_OFFSETS).startswith(f"0\n{size}\nmany 0 0\n".encode())
    again.abandon()


async def open_many(logs: Logs, size: int) -> LogManager:
    """Return the manager of two directories that share no log, each with half of the logs."""
    disks = SimDisk(), SimDisk()
    directories = [LogDirectory(disk, name) for disk, name in zip(disks, "ab", strict=True)]
    manager = LogManager(directories, Clock(), threads=DiskThreads(logs.meter.in_thread))
    for number in range(size):
        disks[number % 2].make_directory(f"many-{number}")
    with logs.meter.measuring():
        await manager.open(lambda _: LogConfig())
    await trio.lowlevel.checkpoint()
    return manager


@row("look at the logs of two directories for assignments and duplicates", "logs", 10_000)
async def look_at_all(logs: Logs, size: int) -> None:
    manager = await open_many(logs, size)
    with logs.meter.measuring():
        assert not await retire_strays(manager, lambda partition, topic_id: True)
        assert not await delete_unassigned(manager, lambda partition, topic_id: True)
        assert not find_duplicates(manager.directories)
    manager.abandon()


@row("retirement of logs without an assignment", "logs", 10_000)
async def retire_many(logs: Logs, size: int) -> None:
    manager = await open_many(logs, size)
    with logs.meter.measuring():
        retired = await retire_strays(manager, lambda partition, topic_id: False)
    assert len(retired) == size
    manager.abandon()


@row("retirement of logs that another directory has too, half of them empty", "logs", 10_000)
async def retire_doubled(logs: Logs, size: int) -> None:
    disks = SimDisk(), SimDisk()
    before = manager_of(logs, disks[0])
    await before.open(lambda _: LogConfig())
    fill(before.create("many", ID, 0, LogConfig()), 1)
    await before.close()
    first = disks[0].root.directory("many-0")
    for number in range(size):
        disks[0].root.names[f"many-{number}"] = copy_of(first)
        if number % 2:
            disks[1].root.names[f"many-{number}"] = copy_of(first)
        else:
            disks[1].make_directory(f"many-{number}")
    directories = [
        LogDirectory(disk, name, directory_id=each)
        for disk, name, each in zip(disks, "ab", IDS, strict=True)
    ]
    manager = LogManager(directories, Clock(), threads=DiskThreads(logs.meter.in_thread))
    with logs.meter.measuring():
        await manager.open(lambda _: LogConfig())
        retired = await retire_outdated(manager, lambda _: IDS[0])
    assert len(retired) == size // 2
    assert not directories[1].logs
    manager.abandon()


async def create_long(logs: Logs, count: int) -> tuple[SimDisk, LogManager]:
    """Return the disk and manager of a node with one log of ``count`` segments."""
    disk = SimDisk()
    manager = manager_of(logs, disk)
    await manager.open(lambda _: SMALL_SEGMENTS)
    log = manager.create("long", ID, 0, SMALL_SEGMENTS)
    for first in range(0, count, 1_000):
        fill(log, min(1_000, count - first), **idempotent())
        await trio.lowlevel.checkpoint()
    assert len(log.segments) == count
    return disk, manager


@row("start of a long log after a clean stop", "segments", 10_000)
async def start_long(logs: Logs, size: int) -> None:
    disk, before = await create_long(logs, size)
    await before.close()
    again = await start(logs, disk, SMALL_SEGMENTS)
    log = again.get("long", 0)
    assert log is not None
    assert len(log.segments) == log.end_offset == size
    again.abandon()


@row("recovery of a long log", "segments", 2_000)
async def recover_long(logs: Logs, size: int) -> None:
    disk, before = await create_long(logs, size)
    before.abandon()
    again = await start(logs, disk.after_kill(), SMALL_SEGMENTS)
    log = again.get("long", 0)
    assert log is not None
    assert len(log.segments) == log.end_offset == size
    again.abandon()


@contextmanager
def watching_reads() -> Iterator[list[int]]:
    """Yield a list that gets the size of each read, because the meter does not see copies."""
    sizes: list[int] = []

    def read_file(file: SimFile, position: int, count: int) -> bytes:
        data = read_piece(file, position, count)
        sizes.append(len(data))
        return data

    def read(disk: SimDisk, path: str) -> bytes:
        data = read_whole(disk, path)
        sizes.append(len(data))
        return data

    read_piece, SimFile.read = SimFile.read, read_file  # type: ignore[method-assign, assignment]
    read_whole, SimDisk.read = SimDisk.read, read  # type: ignore[method-assign, assignment]
    try:
        yield sizes
    finally:
        SimFile.read = read_piece  # type: ignore[method-assign]
        SimDisk.read = read_whole  # type: ignore[method-assign]


@row("start of a log with many aborted transactions", "transactions", 500_000)
async def start_aborted(logs: Logs, size: int) -> None:
    disk, config = SimDisk(), LogConfig()
    before = manager_of(logs, disk)
    await before.open(lambda _: config)
    log = before.create("aborted", ID, 0, config)
    fill(log, 10)
    log.roll(TIME_MS)
    fill(log, 10)
    path = log.segments[0].files.path(names.TXN_INDEX)
    await before.close()
    packed = [pack(AbortedTxn(1, last - 1, last, 0)) for last in range(1, size + 1)]
    disk.write(path, b"".join(packed))
    with watching_reads() as sizes:
        again = await start(logs, disk, config)
    assert len(disk.read(path)) == size * 34, "the index has been rebuilt"
    assert max(sizes) <= READ_MAX
    again.abandon()
