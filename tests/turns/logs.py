"""Operations on the logs of one directory, whose disk is in memory."""

import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from kwire.drive import run_steps
from kwire.log.aborted_transactions import read_committed
from kwire.log.cleaner import LogCleaner
from kwire.log.cold_lookups import WouldWait
from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import CleanedGroup, CleaningJob
from kwire.log.config import CleanerSettings, LogConfig
from kwire.log.directories.cleaning_runner import Clean, Pass
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index
from kwire.log.formats.txn_index import AbortedTxn, pack
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.producers import Producer, Sent
from kwire.log.region import FileRegion
from kwire.log.threads import DiskThreads, InThread
from simulation.disk import SimDisk, SimFile
from simulation.log.thread_workers import ThreadRunner
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, append, encode, end_transaction
from tests.support.log.manager import ID
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

BASE_OFFSET = struct.Struct(">q")
CHUNK = 1000
REMOVAL_S = 70
"""More than the delay with which files are removed."""


@attrs.frozen
class Logs:
    """The logs of one directory, their disk, and the meter."""

    manager: LogManager
    disk: SimDisk
    meter: TurnMeter
    configs: dict[str, LogConfig]

    def create(self, topic: str, **settings: Any) -> PartitionLog:
        """Return the new log of a topic's partition."""
        self.configs[topic] = LogConfig(**settings)
        return self.manager.create(topic, ID, 0, self.configs[topic])


@asynccontextmanager
async def logs_of_a_directory(meter: TurnMeter) -> AsyncIterator[Logs]:
    disk = SimDisk()
    configs: dict[str, LogConfig] = {}
    manager = LogManager(
        [LogDirectory(disk, "data")], Clock(), threads=DiskThreads(meter.in_thread)
    )
    await manager.open(lambda topic: configs.get(topic, LogConfig()))
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield Logs(manager, disk, meter, configs)
        nursery.cancel_scope.cancel()


LOGS = Scene("logs", logs_of_a_directory)


def batches(count: int, start: int = 0, **fields: Any) -> Iterator[bytes]:
    """Yield ``count`` batches of one record each, a thousand at a time."""
    template = encode([b"v"], **fields)
    for first in range(start, start + count, CHUNK):
        chunk = bytearray(template * min(CHUNK, start + count - first))
        for number in range(len(chunk) // len(template)):
            BASE_OFFSET.pack_into(chunk, number * len(template), first + number)
        yield bytes(chunk)


def fill(log: PartitionLog, count: int, **fields: Any) -> None:
    """Append batches as a follower does."""
    for chunk in batches(count, log.end_offset, **fields):
        log.append_follower(chunk, TIME_MS)
    log.flush_state.flush()
    log.high_watermark = log.end_offset


def idempotent(producer: int = 5) -> dict[str, Any]:
    return {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}


def producers(count: int) -> list[Producer]:
    sent = [Sent(0, 0, 0, TIME_MS)]
    return [Producer(number, 0, 0, TIME_MS, -1, list(sent)) for number in range(count)]


@LOGS.operation("truncation of the last batch", "batches of idempotent producers", 300_000)
async def truncate(logs: Logs, size: int) -> None:
    log = logs.create("truncated")
    fill(log, size, **idempotent())
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, size - 1)
    assert log.end_offset == size - 1


@LOGS.operation("start of a follower's log at another offset", "segments", 300)
async def restart(logs: Logs, size: int) -> None:
    """Its leader has deleted what the follower has."""
    log = logs.create("restarted", segment_bytes=200)
    fill(log, 2 * size)
    assert len(log.segments) >= size
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        assert await logs.manager.restart_at(log, 10 * size)
        await trio.sleep(REMOVAL_S)
    assert (log.log_start, log.end_offset) == (10 * size, 10 * size)


@LOGS.operation("removal of a segment before any flush", "producers", 100_000)
async def remove_unflushed(logs: Logs, size: int) -> None:
    """A snapshot of the producers is written before it."""
    log = logs.create("unflushed", retention_ms=3_600_000)
    run_steps(log.producers.restoring(producers(size)))
    append(log, [b"v"], timestamp_ms=TIME_MS - 7_200_000)
    log.high_watermark = log.end_offset
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.retain(log)
    assert log.log_start == log.end_offset


@LOGS.operation("roll", "producers", 100_000)
async def roll(logs: Logs, size: int) -> None:
    """A snapshot of the producers is written with it."""
    log = logs.create("rolled")
    run_steps(log.producers.restoring(producers(size)))
    append(log, [b"v"])
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        log.roll(TIME_MS)
        append(log, [b"v"])
        await trio.sleep(1)
        await logs.manager.flush(log)
    assert logs.disk.read("rolled-0/00000000000000000001.snapshot")


@LOGS.operation("recovery that cuts at the first batch", "segments", 1_000)
async def recover(logs: Logs, size: int) -> None:
    """The node's controller, if it has one, answers meanwhile.

    A log of many small batches is recovered before it.
    """
    config, own_disk = LogConfig(segment_bytes=200), SimDisk()
    manager = LogManager([LogDirectory(own_disk, "data")], Clock())
    await manager.open(lambda topic: config)
    fill(manager.create("before", ID, 0, LogConfig()), 20 * size, **idempotent())
    log = manager.create("cut", ID, 0, config)
    fill(log, 2 * size)
    assert len(log.segments) >= size
    disk = own_disk.after_kill()
    disk.rot("cut-0/00000000000000000000.log", 70)
    directory = LogDirectory(disk, "data")
    again = LogManager([directory], Clock(), threads=DiskThreads(logs.meter.in_thread))
    with logs.meter.measuring():
        await again.open(lambda topic: config)
    assert directory.logs[log.partition].end_offset < 2


async def read_from_each_segment(logs: Logs, log: PartitionLog) -> None:
    with logs.meter.measuring():
        for segment in list(log.segments)[:-1]:
            offset = segment.base_offset + 3
            with log.read(offset, 1, end_offset=log.end_offset) as region:
                assert len(region)
            await trio.lowlevel.checkpoint()


@LOGS.operation(
    "move to another directory",
    "batches of idempotent producers",
    20_000,
    "AlterReplicaLogDirs",
    "log.directories.moves._run",
)
async def move(logs: Logs, size: int) -> None:
    directories = [LogDirectory(SimDisk(), name) for name in ("a", "b")]
    manager = LogManager(directories, Clock(), threads=DiskThreads(logs.meter.in_thread))
    await manager.open(lambda topic: LogConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        log = manager.create("moved", ID, 0, LogConfig(segment_bytes=60_000))
        run_steps(log.producers.restoring(producers(5_000)))
        fill(log, size, **idempotent())
        moved = trio.Event()
        manager.moves.rules.on_moved = lambda old, new: moved.set()
        with logs.meter.measuring():
            manager.moves.request(log, directories[1])
            await moved.wait()
            await manager.flush(directories[1].logs[log.partition], indexes=True)
        nursery.cancel_scope.cancel()
    assert directories[1].logs[log.partition].end_offset == size


@LOGS.operation("first read of each closed segment", "segments", 1_000)
async def first_read(logs: Logs, size: int) -> None:
    log = logs.create("read", segment_bytes=1_000, index_interval_bytes=100)
    fill(log, 14 * size)
    log.flush_state.flush()
    assert len(log.segments) >= size
    await read_from_each_segment(logs, log)


@LOGS.operation("first read of segments with the indexes of older brokers", "segments", 1_000)
async def first_read_of_other_indexes(logs: Logs, size: int) -> None:
    """Kafka up to 4.0.0 wrote the last offset of an append with the position of its first batch."""
    log = logs.create("older", segment_bytes=1_000, index_interval_bytes=100)
    fill(log, 14 * size)
    log.flush_state.flush()
    for segment in log.segments[:-1]:
        path = segment.files.path(names.INDEX)
        pairs = offset_index.entries(logs.disk.read(path), segment.base_offset)
        lasts = [*(offset - 1 for offset, _ in pairs[1:]), pairs[-1][0]]
        others = zip(lasts, (position for _, position in pairs), strict=True)
        packed = [offset_index.ENTRY.pack(last - segment.base_offset, at) for last, at in others]
        logs.disk.write(path, b"".join(packed))
        segment.drop_indexes()
    await trio.lowlevel.checkpoint()
    await read_from_each_segment(logs, log)


async def read_as_a_fetch(logs: Logs, read: Callable[[bool], FileRegion]) -> None:
    """Read without waiting or, if that fails, once a thread has made the job of the lookup."""
    with logs.meter.measuring():
        try:
            region = read(False)
        except WouldWait as cold:
            await logs.manager.threads.run(cold.disk, cold.job)
            region = read(True)
        region.close()


@LOGS.operation("first append after a restart", "index entries", 1_300_000)
async def first_append(logs: Logs, size: int) -> None:
    """Copies of a long index are too quick for the meter, so the bytes read count as well."""
    log = logs.create("long", index_interval_bytes=0, segment_index_bytes=20 * size)
    fill(log, 20)
    log.close()
    segment, entries = log.segments.active, size
    index = logs.disk.read(segment.files.path(names.INDEX))
    last = index[-offset_index.ENTRY_SIZE :]
    logs.disk.write(segment.files.path(names.INDEX), last * entries)
    times = logs.disk.read(segment.files.path(names.TIME_INDEX))
    logs.disk.write(segment.files.path(names.TIME_INDEX), times * entries)
    segment.drop_indexes()
    read_bytes = 0

    def read(file: SimFile, position: int, count: int) -> bytes:
        nonlocal read_bytes
        data = read_file(file, position, count)
        read_bytes += len(data)
        return data

    read_file, SimFile.read = SimFile.read, read  # type: ignore[method-assign, assignment]
    try:
        with logs.meter.measuring():
            append(log, [b"v"])
    finally:
        SimFile.read = read_file  # type: ignore[method-assign]
    assert segment.indexes.offsets is not None
    assert segment.indexes.offsets.size == (size + 1) * offset_index.ENTRY_SIZE
    assert read_bytes < 1_000


@LOGS.operation("truncation to the first batches", "index entries", 30_000)
async def cut_long_index(logs: Logs, size: int) -> None:
    log = logs.create("shortened", index_interval_bytes=0)
    fill(log, size)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.truncate(log, 10)
        append(log, [b"v"])
    assert log.end_offset == 11


@LOGS.operation("first read of a segment with a wrong index", "batches", 20_000)
async def wrong_index(logs: Logs, size: int) -> None:
    log = logs.create("wrong")
    fill(log, size)
    log.roll(TIME_MS)
    fill(log, 10)
    path = log.segments[0].files.path(names.INDEX)
    pairs = offset_index.entries(logs.disk.read(path), 0)
    wrong = b"".join(offset_index.ENTRY.pack(offset, at + 7) for offset, at in pairs)
    logs.disk.write(path, wrong)

    def read(wait: bool) -> FileRegion:
        return log.read(size // 2, 200, end_offset=log.end_offset, wait=wait)

    await read_as_a_fetch(logs, read)
    assert offset_index.entries(logs.disk.read(path), 0) == pairs


@LOGS.operation(
    "retention without a time index", "batches", 20_000, "log.directories.log_retention.run"
)
async def lost_time_index(logs: Logs, size: int) -> None:
    log = logs.create("ageless", retention_ms=3_600_000)
    fill(log, size)
    log.roll(TIME_MS)
    fill(log, 10)
    segment = log.segments[0]
    segment.max_timestamp = -2
    index = logs.disk.read(segment.files.path(names.TIME_INDEX))
    logs.disk.remove(segment.files.path(names.TIME_INDEX))
    with logs.meter.measuring():
        await logs.manager.retain(log)
    assert logs.disk.read(segment.files.path(names.TIME_INDEX)) == index


@LOGS.operation("first search of aborted transactions", "transactions", 500_000)
async def first_aborted(logs: Logs, size: int) -> None:
    """One that was open all the while held back the last stable offset."""
    log = logs.create("aborted")
    fill(log, 10)
    log.roll(TIME_MS)
    fill(log, 10)
    segment = log.segments[0]
    packed = [pack(AbortedTxn(1, last - 1, last, 0)) for last in range(1, size + 1)]
    logs.disk.write(segment.files.path(names.TXN_INDEX), b"".join(packed))
    segment.indexes.aborted.has_no_file = False

    def read(wait: bool) -> FileRegion:
        region, aborted = read_committed(log, 2, 200, end_offset=10, wait=wait)
        assert aborted
        return region

    await read_as_a_fetch(logs, read)


@LOGS.operation("append and move of the high watermark", "open transactions", 5_000)
async def open_transactions(logs: Logs, size: int) -> None:
    log = logs.create("open")
    for producer in range(size):
        append(log, [b"v"], transactional=True, **idempotent(producer))
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        append(log, [b"v"])
        log.producers.last_stable_offset(log.end_offset)
        log.high_watermark = log.end_offset
        log.producers.last_stable_offset(log.end_offset)


@LOGS.operation("move of the high watermark over ended transactions", "transactions", 10_000)
async def ended_transactions(logs: Logs, size: int) -> None:
    log = logs.create("ended")
    for producer in range(size):
        append(log, [b"v"], transactional=True, **idempotent(producer))
        end_transaction(log, producer, commit=True)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        log.producers.last_stable_offset(log.end_offset // 2)
        log.producers.last_stable_offset(log.end_offset)


@LOGS.operation("retention by time", "segments", 10_000, "log.directories.log_retention.run")
async def retain(logs: Logs, size: int) -> None:
    log = logs.create("retained", segment_bytes=100, retention_ms=3_600_000)
    fill(log, size, timestamp_ms=TIME_MS - 7_200_000)
    assert len(log.segments) >= size
    for segment in log.segments:
        segment.max_timestamp = -2
    with logs.meter.measuring():
        await logs.manager.retain(log)
    assert len(log.segments) < 3
    with logs.meter.measuring():
        await trio.sleep(REMOVAL_S)


@LOGS.operation(
    "expiry of idle producers", "producers", 100_000, "log.directories.log_retention.run_expiry"
)
async def expire(logs: Logs, size: int) -> None:
    log = logs.create("expired", producer_id_expiration_ms=1_000)
    run_steps(log.producers.restoring(producers(size)))
    await trio.sleep(2)
    with logs.meter.measuring():
        await logs.manager.services[log.disk].retention.expire_producers(log)
    assert not len(log.producers)


@LOGS.operation(
    "flush of rolled segments", "segments", 1_000, "log.directories.flusher.flush_rolled"
)
async def flush(logs: Logs, size: int) -> None:
    log = logs.create("flushed", segment_bytes=200)
    for chunk in batches(2 * size):
        log.append_follower(chunk, TIME_MS)
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await trio.sleep(1)
        await logs.manager.flush(log)


@LOGS.operation(
    "checkpoints of changed logs",
    "logs",
    3_000,
    "log.directories.checkpointing.keep_high_watermarks",
    "log.directories.checkpointing.keep_recovery_points",
    "log.directories.flusher.flush_timed",
    "log.directories.removal.run",
)
async def checkpoint(logs: Logs, size: int) -> None:
    """Its time-out flushes each log meanwhile, and at last all of them are deleted."""
    changed = [logs.create(f"changed-{number}", flush_ms=10_000) for number in range(size)]
    for log in changed:
        append(log, [b"v"])
        log.high_watermark = log.end_offset
    with logs.meter.measuring():
        await trio.sleep(300)
        for log in changed:
            await logs.manager.delete(log.partition.topic, 0)
            await trio.lowlevel.checkpoint()
        await trio.sleep(REMOVAL_S)


COMPACTED: dict[str, Any] = {
    "cleanup_compact": True,
    "cleanup_delete": False,
    "min_cleanable_dirty_ratio": 0.1,
}


def make_cleaner(logs: Logs, run_pass: Clean) -> LogCleaner:
    """Return a cleaner that has no thread yet."""
    return LogCleaner(
        logs.manager.services,
        Clock(),
        lambda: ThreadRunner(in_meter(logs), run_pass),
        CleanerSettings(threads=0, backoff_ms=0),
    )


def forget_cleaner(logs: Logs) -> None:
    for service in logs.manager.services.values():
        service.on_compactable = lambda log: None


def append_and_close(log: PartitionLog) -> None:
    """Append a record in a segment that can be cleaned."""
    append(log, [b"v"])
    log.roll(TIME_MS)
    log.high_watermark = log.end_offset


@LOGS.operation(
    "choice of the log to compact", "logs", 10_000, "log.cleaner.run", "log.cleaner._look_at_marked"
)
async def choose(logs: Logs, size: int) -> None:
    config = LogConfig(**COMPACTED)
    cleaner = make_cleaner(logs, clean)
    for number in range(size):
        log = logs.manager.create("many", ID, number, config)
        if number < 10:
            append_and_close(log)
        await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaner.run, name="cleaner.run")
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    assert max(cleaner.dirty_percents()) == 100
    forget_cleaner(logs)


@LOGS.operation(
    "compaction of logs that are due together",
    "logs",
    10_000,
    "log.cleaner._work",
    after="choice of the log to compact",
)
async def compact(logs: Logs, size: int) -> None:
    """The first passes, each of which chooses among all logs that are left."""
    pass_count, enough = 0, trio.Event()

    def count(disk: Disk, job: CleaningJob, pace: Callable[[int], None]) -> Pass:
        nonlocal pass_count
        pass_count += 1
        if pass_count == 5:
            enough.set()
        return clean(disk, job, pace)

    cleaner = make_cleaner(logs, count)
    for number in range(size):
        log = logs.manager.get("many", number)
        assert log is not None
        append_and_close(log)
        await trio.lowlevel.checkpoint()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run, name="cleaner.run")
        await trio.sleep(10)  # The logs are flushed and assessed, without a thread to clean them.
        with logs.meter.measuring():
            cleaner.configure(CleanerSettings(threads=1, backoff_ms=0))
            await enough.wait()
        nursery.cancel_scope.cancel()
    forget_cleaner(logs)


@LOGS.operation("swap of a compacted group", "segments", 1_000)
async def swap(logs: Logs, size: int) -> None:
    log = logs.create("swapped", segment_bytes=200, **COMPACTED)
    for _ in range(2 * size + 10):
        log.append_follower(encode([b"v"], base_offset=log.end_offset), TIME_MS)
    await logs.manager.flush(log, indexes=True)
    sources = log.segments[:size]
    assert len(sources) == size < len(log.segments)
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX):
        logs.disk.write(sources[0].files.path(suffix) + names.CLEANED, b"")
    group = CleanedGroup(
        base_offset=0,
        sources=tuple(segment.base_offset for segment in sources),
        size=0,
        suffixes=(names.LOG, names.INDEX, names.TIME_INDEX),
        largest_timestamp_ms=-1,
        largest_timestamp_offset=0,
        modified_ms=TIME_MS,
        bytes_read=0,
        bytes_written=0,
        records_read=0,
        records_kept=0,
        keyless_dropped=0,
    )
    await trio.lowlevel.checkpoint()
    with logs.meter.measuring():
        await logs.manager.services[log.disk].cleaning.swap.swap(log, group, lambda: True)
    assert log.segments[0].size == 0
    assert log.segments[1].base_offset > sources[-1].base_offset


def in_meter(logs: Logs) -> InThread:
    async def in_thread(disk: object, call: Callable[[], None]) -> None:
        await logs.meter.in_thread(call)

    return in_thread
