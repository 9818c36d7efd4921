"""ListOffsets by timestamp: a search of a batch does not delay other clients."""

import gzip
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.log import timestamp_search
from kwire.log.disk import Disk
from kwire.log.threads import THREADS, DiskThreads
from kwire.records import build, compression, header
from kwire.replica import unpacking
from kwire.replica.partition import MAX_TIMESTAMP, FetchIsolation, Partition
from simulation.disk import SimDisk
from tests.support.handlers.broker import NOW_MS, Broker, broker, topic_id

MANY = 3_000
T = TypeVar("T")


async def broker_with_batch(**changes: Any) -> tuple[Broker, Partition]:
    """Return a broker and its partition with one batch of :data:`MANY` records."""
    subject = broker()
    partition = await subject.create("t")
    assert partition is not None
    batch = build.batch(
        [build.New(None, None, (), NOW_MS + n) for n in range(MANY)],
        timestamp_ms=NOW_MS,
        leader_epoch=-1,
        **changes,
    )
    subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)
    return subject, partition


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("timestamp", [NOW_MS + MANY - 1, MAX_TIMESTAMP])
async def test_other_tasks_run_during_a_search(codec: int, timestamp: int):
    subject, partition = await broker_with_batch(compression=codec)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        record = await subject.replicas.locate(partition, timestamp, FetchIsolation.HIGH_WATERMARK)
        nursery.cancel_scope.cancel()
    assert record.offset == MANY - 1
    assert turns >= 10


async def test_payload_above_the_limit_is_not_decompressed(monkeypatch: pytest.MonkeyPatch):
    """Invariant 98: the answer comes from the batch's header."""
    monkeypatch.setattr(timestamp_search, "PAYLOAD_MAX", 1 << 20)
    subject, partition = await broker_with_batch()
    head = header.parse(build.batch([build.New(None, b"x")], timestamp_ms=NOW_MS + MANY))
    head = head._replace(attributes=1, leader_epoch=-1)
    bomb = build.assemble(head, gzip.compress(bytes(8 << 20)))
    partition.append(bomb, header.parse(bomb), 1, 0.0, NOW_MS)
    record = await subject.replicas.locate(partition, NOW_MS + MANY, FetchIsolation.HIGH_WATERMARK)
    assert (record.offset, record.timestamp) == (MANY, NOW_MS + MANY)


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize("timestamp", [NOW_MS + 1, MAX_TIMESTAMP])
async def test_search_skips_the_headers_of_records(codec: int, timestamp: int):
    """Invariant 98: 300 bytes can hold a million headers, which take seconds to decode."""
    subject, partition = await broker_with_batch()
    record = build.New(b"key", b"", ((b"", None),) * 100_000, NOW_MS + MANY)
    batch = build.batch([record] * 2, timestamp_ms=NOW_MS + MANY, compression=codec)
    subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)
    partition.log.log_start = MANY + 1
    tracemalloc.start()
    try:
        answer = await subject.replicas.locate(partition, timestamp, FetchIsolation.HIGH_WATERMARK)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.offset, answer.timestamp) == (MANY + 1, NOW_MS + MANY)
    assert peak < 3 << 20, "two records of 200 KB, and the memory to decompress them"


async def test_number_of_searches_with_a_decompressed_payload_is_limited(
    monkeypatch: pytest.MonkeyPatch,
):
    """Invariant 98: a payload stays in memory until its last record was read."""
    subject, partition = await broker_with_batch(compression=compression.GZIP)
    started = most = finished = 0
    unpack = timestamp_search._unpack

    def count_unpack(*arguments: Any) -> bytes | None:
        nonlocal started, most
        started += 1
        most = max(most, started - finished)
        return unpack(*arguments)

    async def search() -> None:
        nonlocal finished
        record = await subject.replicas.locate(
            partition, NOW_MS + MANY - 1, FetchIsolation.HIGH_WATERMARK
        )
        finished += 1
        assert record.offset == MANY - 1

    monkeypatch.setattr(timestamp_search, "_unpack", count_unpack)
    async with trio.open_nursery() as nursery:
        for _ in range(4 * unpacking.THREADS):
            nursery.start_soon(search)
    assert finished == 4 * unpacking.THREADS
    assert 1 <= most <= unpacking.THREADS


class LoopThreads(DiskThreads):
    """Threads whose calls run on the loop, in its next turn."""

    async def run(self, disk: Disk, call: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return call()


async def test_number_of_searches_with_a_compressed_payload_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 98: also while the threads that decompress payloads are busy."""
    subject, partition = await broker_with_batch(compression=compression.GZIP)
    subject.replicas.unpacker.readers = LoopThreads()
    released = threading.Event()
    read, unpack = timestamp_search._payload, timestamp_search._unpack
    reads = 0

    def count_read(*arguments: Any) -> bytes | None:
        nonlocal reads
        reads += 1
        return read(*arguments)

    def wait_and_unpack(*arguments: Any) -> bytes | None:
        released.wait()
        return unpack(*arguments)

    async def search() -> None:
        last_ms = NOW_MS + MANY - 1
        record = await subject.replicas.locate(partition, last_ms, FetchIsolation.HIGH_WATERMARK)
        assert record.offset == MANY - 1

    monkeypatch.setattr(timestamp_search, "_payload", count_read)
    monkeypatch.setattr(timestamp_search, "_unpack", wait_and_unpack)
    async with trio.open_nursery() as nursery:
        for _ in range(4 * unpacking.THREADS):
            nursery.start_soon(search)
        await trio.testing.wait_all_tasks_blocked()
        most = reads
        released.set()
    assert most == unpacking.THREADS
    assert reads == 4 * unpacking.THREADS


async def test_number_of_decompressed_payloads_of_several_disks_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 98: a search holds its payload until it has read the last record."""

    async def run_on_the_loop(call: Callable[[], T], *, limiter: trio.CapacityLimiter) -> T:
        async with limiter:  # A thread of a busy machine could need longer than a search.
            return call()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_on_the_loop)
    unpacker, payloads, most = unpacking.Unpacker(readers=LoopThreads()), 0, 0

    def search(disk: SimDisk) -> timestamp_search.Search:
        nonlocal payloads, most
        yield timestamp_search.Job(lambda: b"packed", disk)
        yield timestamp_search.Job(lambda: b"payload", None)
        payloads += 1
        most = max(most, payloads)
        for _ in range(50):
            yield None
        payloads -= 1
        return timestamp_search.OffsetAndTimestamp(1, 2)

    async with trio.open_nursery() as nursery:
        for disk in [SimDisk() for _ in range(4)]:
            for _ in range(unpacking.THREADS):
                nursery.start_soon(unpacker.search, search(disk))
    assert payloads == 0
    assert 1 <= most <= unpacking.THREADS


async def test_searches_on_a_hung_disk_delay_no_other_disk() -> None:
    """Invariant 91: they delay no batch of a producer that is decompressed either."""
    unpacker, hung, good = unpacking.Unpacker(), SimDisk(), SimDisk()
    released = threading.Event()

    def wait() -> bytes | None:
        released.wait()
        return b""

    def search(disk: SimDisk, read: Callable[[], bytes | None]) -> timestamp_search.Search:
        packed = yield timestamp_search.Job(read, disk)
        yield timestamp_search.Job(lambda: packed, None)
        return timestamp_search.OffsetAndTimestamp(1, 2)

    async with trio.open_nursery() as nursery:
        for _ in range(2 * THREADS):
            nursery.start_soon(unpacker.search, search(hung, wait))
        await trio.testing.wait_all_tasks_blocked()
        try:
            with trio.fail_after(60):
                record = await unpacker.search(search(good, lambda: b""))
                batch = build.batch(
                    [build.New(b"k", bytes(1 << 20))], timestamp_ms=1, compression=1
                )
                await unpacker.check_in_thread(batch, header.parse(batch), keys=True)
                await unpacker.recompress(batch, header.parse(batch), compression.ZSTD)
        finally:
            released.set()
    assert record == timestamp_search.OffsetAndTimestamp(1, 2)


async def test_search_of_a_topic_deleted_meanwhile_is_refused():
    subject, partition = await broker_with_batch()

    async def delete() -> None:
        await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        with pytest.raises(errors.NotLeaderOrFollower):
            await subject.replicas.locate(
                partition, NOW_MS + MANY - 1, FetchIsolation.HIGH_WATERMARK
            )
