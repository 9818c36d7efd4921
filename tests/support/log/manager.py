"""A broker's log directories for tests: opened, in service until the test's block ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import RealDisk
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import append
from tests.support.log.threads import at_once

ID, OTHER = bytes(15) + b"\7", bytes(15) + b"\x08"


def config_of(topic: str) -> LogConfig:
    """Return the settings of every topic: segments of a few batches, retention of an hour."""
    return LogConfig(segment_bytes=200, retention_ms=3_600_000, file_delete_delay_ms=60_000)


def manager(*disks: SimDisk | RealDisk) -> LogManager:
    """Return a manager of one directory on each disk; nothing is opened."""
    directories = [LogDirectory(d, f"dir{n}") for n, d in enumerate(disks)]
    return LogManager(directories, Clock(), threads=DiskThreads(at_once))


@asynccontextmanager
async def running(*disks: SimDisk | RealDisk) -> AsyncIterator[LogManager]:
    """Open the directories and run their service for the length of the block."""
    logs = manager(*disks)
    await logs.open(config_of)
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()


async def create_log(logs: LogManager, topic: str = "t", partition: int = 0) -> PartitionLog:
    log = logs.create(topic, ID, partition, config_of(topic))
    assert isinstance(log, PartitionLog)
    return log


async def create_deleted_from(logs: LogManager, *, log_start: int, end_offset: int) -> PartitionLog:
    """Create a log of old records, of which those below ``log_start`` have been deleted."""
    log = await create_log(logs)
    for _ in range(end_offset):
        append(log, [b"old"])
    log.high_watermark = end_offset
    log.advance_log_start(log_start)
    assert not await logs.keep_starts([log])
    return log
