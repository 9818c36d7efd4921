"""ListOffsets by timestamp: what is in a batch must not hold up anybody else."""

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
from kwire.replica.partition import MAX_TIMESTAMP, Partition
from kwire.replica.purgatory import FetchIsolation
from kwire.simulation.disk import SimDisk
from tests.support.handlers.broker import NOW_MS, Broker, broker, topic_id

MANY = 3_000
T = TypeVar("T")


async def filled(**changes: Any) -> tuple[Broker, Partition]:
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
@pytest.mark.parametrize("wanted", [NOW_MS + MANY - 1, MAX_TIMESTAMP])
async def test_others_come_in_between(codec: int, wanted: int):
    subject, partition = await filled(compression=codec)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        found = await subject.replicas.locate(partition, wanted, FetchIsolation.HIGH_WATERMARK)
        nursery.cancel_scope.cancel()
    assert found.offset == MANY - 1
    assert turns >= 10


async def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch):
    """Invariant 98: the batch's header has to do."""
    monkeypatch.setattr(timestamp_search, "PAYLOAD_MAX", 1 << 20)
    subject, partition = await filled()
    head = header.parse(build.batch([build.New(None, b"x")], timestamp_ms=NOW_MS + MANY))
    head = head._replace(attributes=1, leader_epoch=-1)
    bomb = build.assemble(head, gzip.compress(bytes(8 << 20)))
    partition.append(bomb, header.parse(bomb), 1, 0.0, NOW_MS)
    found = await subject.replicas.locate(partition, NOW_MS + MANY, FetchIsolation.HIGH_WATERMARK)
    assert (found.offset, found.timestamp) == (MANY, NOW_MS + MANY)


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize("wanted", [NOW_MS + 1, MAX_TIMESTAMP])
async def test_headers_are_passed_over_by_a_search(codec: int, wanted: int):
    """Invariant 98: 300 bytes can hold a million headers, seconds of work on the loop."""
    subject, partition = await filled()
    record = build.New(b"key", b"", ((b"", None),) * 100_000, NOW_MS + MANY)
    batch = build.batch([record] * 2, timestamp_ms=NOW_MS + MANY, compression=codec)
    subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)
    partition.log.start_offset = MANY + 1
    tracemalloc.start()
    try:
        found = await subject.replicas.locate(partition, wanted, FetchIsolation.HIGH_WATERMARK)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.offset, found.timestamp) == (MANY + 1, NOW_MS + MANY)
    assert peak < 3 << 20, "two records of 200 KB, and what unpacking them takes"


async def test_no_more_than_a_few_searches_hold_a_payload(monkeypatch: pytest.MonkeyPatch):
    """Invariant 98: a payload is in memory until its last record was looked at."""
    subject, partition = await filled(compression=compression.GZIP)
    active = most = finished = 0
    unpack = timestamp_search._unpack

    def unpack_counted(*arguments: Any) -> bytes | None:
        nonlocal active, most
        active += 1
        most = max(most, active - finished)
        return unpack(*arguments)

    async def search() -> None:
        nonlocal finished
        found = await subject.replicas.locate(
            partition, NOW_MS + MANY - 1, FetchIsolation.HIGH_WATERMARK
        )
        finished += 1
        assert found.offset == MANY - 1

    monkeypatch.setattr(timestamp_search, "_unpack", unpack_counted)
    async with trio.open_nursery() as nursery:
        for _ in range(4 * unpacking.THREADS):
            nursery.start_soon(search)
    assert finished == 4 * unpacking.THREADS
    assert 1 <= most <= unpacking.THREADS


class LoopThreads(DiskThreads):
    """Threads that have made their call when the loop comes round again."""

    async def run(self, disk: Disk, call: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return call()


async def test_no_more_than_a_few_searches_hold_what_they_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 98: also while all those wait that unpack."""
    subject, partition = await filled(compression=compression.GZIP)
    subject.replicas._unpacker.readers = LoopThreads()
    released = threading.Event()
    read, unpack = timestamp_search._payload, timestamp_search._unpack
    reads = 0

    def read_counted(*arguments: Any) -> bytes | None:
        nonlocal reads
        reads += 1
        return read(*arguments)

    def unpack_late(*arguments: Any) -> bytes | None:
        released.wait()
        return unpack(*arguments)

    async def search() -> None:
        wanted = NOW_MS + MANY - 1
        found = await subject.replicas.locate(partition, wanted, FetchIsolation.HIGH_WATERMARK)
        assert found.offset == MANY - 1

    monkeypatch.setattr(timestamp_search, "_payload", read_counted)
    monkeypatch.setattr(timestamp_search, "_unpack", unpack_late)
    async with trio.open_nursery() as nursery:
        for _ in range(4 * unpacking.THREADS):
            nursery.start_soon(search)
        await trio.testing.wait_all_tasks_blocked()
        most = reads
        released.set()
    assert most == unpacking.THREADS
    assert reads == 4 * unpacking.THREADS


async def test_searches_on_a_hung_disk_stop_no_others() -> None:
    """Invariant 91: nor what is unpacked for producers."""
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
                found = await unpacker.search(search(good, lambda: b""))
                batch = build.batch(
                    [build.New(b"k", bytes(1 << 20))], timestamp_ms=1, compression=1
                )
                await unpacker.check_keys(batch, header.parse(batch))
                await unpacker.recompress(batch, header.parse(batch), compression.ZSTD)
        finally:
            released.set()
    assert found == timestamp_search.OffsetAndTimestamp(1, 2)


async def test_a_topic_that_goes_meanwhile():
    subject, partition = await filled()

    async def delete() -> None:
        await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        with pytest.raises(errors.NotLeaderOrFollower):
            await subject.replicas.locate(
                partition, NOW_MS + MANY - 1, FetchIsolation.HIGH_WATERMARK
            )
