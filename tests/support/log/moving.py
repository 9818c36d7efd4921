"""Two log directories between which logs move, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.move_rules import MoveRules
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.manager import ID
from tests.support.log.threads import at_once

FIRST, SECOND, THIRD = b"a" * 16, b"b" * 16, b"c" * 16
CONFIG = LogConfig(
    segment_bytes=300, index_interval_bytes=50, retention_ms=-1, file_delete_delay_ms=60_000
)


@attrs.define
class Limit:
    """A limit of copies that a test sets."""

    is_over: bool = False
    limit_bytes: int = 1 << 60
    """The number of bytes after which the limit is exceeded."""
    copied_bytes: int = 0

    def record(self, size_bytes: int, now: float) -> None:
        self.copied_bytes += size_bytes

    def is_exceeded(self, now: float) -> bool:
        return self.is_over or self.copied_bytes >= self.limit_bytes

    def pause_s(self, now: float) -> float:
        return 0.1


def disk_of(directory: LogDirectory) -> SimDisk:
    assert isinstance(directory.disk, SimDisk)
    return directory.disk


def manager(*disks: SimDisk) -> LogManager:
    """Return a manager of one directory on each disk; nothing is opened."""
    ids = (FIRST, SECOND, THIRD)
    directories = [LogDirectory(d, f"dir{n}", ids[n]) for n, d in enumerate(disks)]
    return LogManager(directories, Clock(), threads=DiskThreads(at_once))


@asynccontextmanager
async def running(
    *disks: SimDisk, rules: MoveRules | None = None, config: LogConfig = CONFIG
) -> AsyncIterator[LogManager]:
    """Open the directories and run their service for the length of the block."""
    logs = manager(*disks)
    if rules is not None:
        logs.moves.rules = rules
    await logs.open(lambda topic: config)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()


def create(logs: LogManager, config: LogConfig = CONFIG) -> PartitionLog:
    """Create the log of partition 0 in the first directory."""
    log = logs.create("t", ID, 0, config, FIRST)
    assert log.disk is logs.directories[0].disk
    return log


def current(logs: LogManager) -> PartitionLog:
    """Return the log of partition 0, which is in one directory only."""
    logs_here = [d.logs[p] for d in logs.directories for p in d.logs]
    assert len(logs_here) == 1
    return logs_here[0]


def entries(disk: SimDisk, directory: str = "") -> list[str]:
    """Return the names in a directory."""
    return sorted(entry.name for entry in disk.entries(directory))


def partitions(disk: SimDisk) -> list[str]:
    """Return the names of the partitions' directories, without their unique part."""
    directories = [e.name for e in disk.entries() if e.is_directory]
    return sorted(
        name.partition(".")[0] + "-" + name.rpartition("-")[2] if "." in name else name
        for name in directories
    )
