"""Operations on logs whose indexes are wrong, lost or long."""

from typing import Final

import trio

from kwire.log import timestamp_search
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names, offset_index
from kwire.log.formats.txn_index import AbortedTxn, pack
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import DiskThreads
from simulation.disk import SimDisk
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS
from tests.support.log.manager import ID
from tests.support.turns.table import Scene
from tests.turns.logs import Logs, fill, logs_of_a_directory

INDEXED: Final = Scene("logs with wrong indexes", logs_of_a_directory)
row = INDEXED.operation


def create_closed(logs: Logs, topic: str, count: int) -> PartitionLog:
    """Return a log whose first segment is closed, with its indexes in files."""
    log = logs.create(topic)
    fill(log, count)
    log.roll(TIME_MS)
    fill(log, 10)
    return log


def spoil_index(logs: Logs, log: PartitionLog) -> None:
    """Let the entries of the first segment point into the middle of batches."""
    path = log.segments[0].files.path(names.INDEX)
    pairs = offset_index.entries(logs.disk.read(path), 0)
    wrong = b"".join(offset_index.ENTRY.pack(offset, at + 7) for offset, at in pairs)
    logs.disk.write(path, wrong)


@row("truncation of a segment with a wrong index", "batches", 20_000)
async def cut_wrong_index(logs: Logs, size: int) -> None:
    log = create_closed(logs, "wrong", size)
    spoil_index(logs, log)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, size // 2)
    assert log.end_offset == size // 2


@row("truncation of a segment without a time index", "batches", 20_000)
async def cut_without_times(logs: Logs, size: int) -> None:
    log = create_closed(logs, "timeless", size)
    segment = log.segments[0]
    segment.max_timestamp = -2
    logs.disk.remove(segment.files.path(names.TIME_INDEX))
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, size // 2)
    assert log.segments.active.largest_timestamp() == TIME_MS


@row("truncation of a closed segment", "aborted transactions", 500_000)
async def cut_aborted(logs: Logs, size: int) -> None:
    log = create_closed(logs, "aborted", size // 10_000)
    segment = log.segments[0]
    packed = [pack(AbortedTxn(1, last - 1, last, 0)) for last in range(1, size + 1)]
    path = segment.files.path(names.TXN_INDEX)
    logs.disk.write(path, b"".join(packed))
    segment.indexes.aborted.has_no_file = False
    end_offset = log.end_offset - 20
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, end_offset)
    await logs.manager.flush(log, indexes=True)
    assert len(segment.indexes.aborted.entries()) == end_offset - 1


@row("truncation of the active segment", "aborted transactions", 100_000)
async def cut_active_aborted(logs: Logs, size: int) -> None:
    log = logs.create("aborting")
    fill(log, 20)
    aborted = [AbortedTxn(1, last - 1, last, 0) for last in range(1, size + 1)]
    log.segments.active.indexes.aborted.replace(aborted)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, 10)
    assert len(log.segments.active.indexes.aborted.entries()) == 9


@row("search for the youngest record above the log start, with a wrong index", "batches", 20_000)
async def search_youngest(logs: Logs, size: int) -> None:
    """The youngest record of the segment is below the log start."""
    log = logs.create("young")
    fill(log, 1, timestamp_ms=TIME_MS + 1)
    fill(log, size)
    log.roll(TIME_MS)
    fill(log, 10)
    spoil_index(logs, log)
    log.advance_log_start(size // 2)
    await trio.lowlevel.checkpoint()
    search, answer = timestamp_search.youngest(log), None
    with logs.meter.measuring():
        while True:
            try:
                job = search.send(answer)
            except StopIteration as done:
                record = done.value
                break
            await trio.lowlevel.checkpoint()
            answer = None if job is None else await logs.meter.in_thread(job.call)
    assert record.offset == size // 2


@row("start of a log without indexes", "batches", 20_000)
async def open_without_indexes(logs: Logs, size: int) -> None:
    """It was closed cleanly; its epochs are lost too."""
    disk = SimDisk()

    def manager() -> LogManager:
        return LogManager(
            [LogDirectory(disk, "data")], Clock(), threads=DiskThreads(logs.meter.in_thread)
        )

    before, config = manager(), LogConfig()
    await before.open(lambda _: config)
    log = before.create("indexless", ID, 0, config)
    fill(log, size)
    log.roll(TIME_MS)
    fill(log, size)
    await before.close()
    for entry in disk.entries("indexless-0"):
        if entry.name.endswith((names.INDEX, names.TIME_INDEX)) or entry.name == names.EPOCHS_FILE:
            disk.remove(f"indexless-0/{entry.name}")
    again = manager()
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await again.open(lambda _: config)
    opened = again.get("indexless", 0)
    assert opened is not None
    assert opened.end_offset == 2 * size
    again.abandon()
