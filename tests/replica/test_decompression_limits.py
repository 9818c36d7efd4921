"""Payloads that grow when decompressed: limits of size and number, their thread, other requests."""

import contextlib
import gzip
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from kwire import speedups
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.errors import InvalidRecord
from kwire.records import build, compression, header
from kwire.replica import unpacking
from kwire.replica.unpacking import HERE_BYTES, THREADS, Unpacker
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import running

CODECS: Final = range(1, 5)
RECORD: Final = build.New(b"key", bytes(100), (), 1_700_000_000_000)


class Decompression(NamedTuple):
    """One call of the codec."""

    on_loop: bool
    """Whether it ran on the event loop's thread."""
    size_bytes: int
    """The size of the payload, or the limit that it exceeds."""


def bomb_batch(size: int, codec: int) -> tuple[bytes, header.BatchHeader]:
    """Return a batch whose record has a value of ``size`` bytes that compress to almost none."""
    record = build.New(b"key", bytes(size), (), 1_700_000_000_000)
    batch = build.batch([record], timestamp_ms=1_700_000_000_000, compression=codec)
    return batch, header.parse(batch)


@pytest.fixture
def decompressions(monkeypatch: pytest.MonkeyPatch) -> list[Decompression]:
    """Record the decompressions of the test, in their order."""
    calls: list[Decompression] = []
    loop, original = threading.get_ident(), compression.decompress

    def decompress(codec: int, data: Any, limit: int) -> Any:
        try:
            plain = original(codec, data, limit)
        except compression.BadPayload:
            calls.append(Decompression(threading.get_ident() == loop, limit))
            raise
        calls.append(Decompression(threading.get_ident() == loop, len(plain)))
        return plain

    for module in (unpacking, compression):
        monkeypatch.setattr(module, "decompress", decompress)
    return calls


async def check(unpacker: Unpacker, batch: bytes, head: header.BatchHeader, *, keys: bool) -> None:
    """Check the records of a batch as the produce path does."""
    if unpacker.check_here(batch, head, keys=keys) is None:
        await unpacker.check_in_thread(batch, head, keys=keys)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("purpose", ["check", "recompress"])
async def test_payload_of_high_ratio_is_decompressed_in_a_thread(
    decompressions: list[Decompression], codec: int, purpose: str
) -> None:
    """Invariant 98: the loop decompresses no more than it may of any small batch."""
    batch, head = bomb_batch(4 << 20, codec)
    if purpose == "check":
        await check(Unpacker(), batch, head, keys=True)
    else:
        plain_batch = await Unpacker().recompress(batch, head, compression.NONE)
        assert len(plain_batch) > 4 << 20
    assert max(size for on_loop, size in decompressions if not on_loop) > 4 << 20
    assert all(size <= HERE_BYTES for on_loop, size in decompressions if on_loop)


@pytest.mark.parametrize("codec", CODECS)
async def test_small_payload_needs_no_thread(
    decompressions: list[Decompression], codec: int
) -> None:
    batch, head = bomb_batch(1000, codec)
    await check(Unpacker(), batch, head, keys=True)
    await Unpacker().recompress(batch, head, compression.NONE)
    assert [on_loop for on_loop, _ in decompressions] == [True, True]


@pytest.mark.parametrize("codec", CODECS)
async def test_payload_above_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    """Invariant 98: the limit of one payload."""
    monkeypatch.setattr(unpacking, "PAYLOAD_MAX", 1 << 20)
    batch, head = bomb_batch(4 << 20, codec)
    with pytest.raises(InvalidRecord):
        await check(Unpacker(), batch, head, keys=True)
    with pytest.raises(InvalidRecord):
        await Unpacker().recompress(batch, head, compression.NONE)


class ThreadCount:
    """The number of threads that are in one place at the same time."""

    def __init__(self) -> None:
        self.most = self._active = 0
        self._guard = threading.Lock()  # lock: of the test's threads
        self._barrier = threading.Barrier(THREADS + 1)

    def note(self) -> None:
        """Count the calling thread, and wait for others for a moment."""
        with self._guard:
            self._active += 1
            self.most = max(self.most, self._active)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barrier.wait(0.05)  # One thread more than allowed would complete the barrier.
        with self._guard:
            self._active -= 1


async def test_number_of_payloads_decompressed_at_once_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 98: each payload may need as much memory as the limit allows."""
    threads = ThreadCount()
    batch, head = bomb_batch(1 << 20, compression.GZIP)
    original = build.recompress

    def recompress(*arguments: Any) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            threads.note()
        return original(*arguments)

    monkeypatch.setattr(build, "recompress", recompress)
    subject = Unpacker()
    async with trio.open_nursery() as nursery:
        for _ in range(4 * THREADS):
            nursery.start_soon(subject.recompress, batch, head, compression.NONE)
    assert 1 <= threads.most <= THREADS


async def test_number_of_payloads_whose_records_are_checked_at_once_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 98: a payload stays in memory until its last record is checked."""
    threads = ThreadCount()
    batch = build.batch([RECORD] * 999, timestamp_ms=1_700_000_000_000, compression=1)
    original = speedups.check_records

    def walk(*arguments: Any, **keywords: Any) -> Any:
        threads.note()
        return original(*arguments, **keywords)

    monkeypatch.setattr(unpacking, "check_records", walk)
    subject = Unpacker()
    async with trio.open_nursery() as nursery:
        for _ in range(4 * THREADS):
            nursery.start_soon(partial(check, subject, batch, header.parse(batch), keys=True))
    assert 1 <= threads.most <= THREADS


async def test_check_skips_the_headers_of_a_record() -> None:
    """Invariant 98: 300 bytes can hold a million headers, which take seconds to decode."""
    record = build.New(b"key", b"", ((b"", None),) * 100_000, 1_700_000_000_000)
    batch = build.batch([record], timestamp_ms=1_700_000_000_000, compression=compression.ZSTD)
    tracemalloc.start()
    try:
        await check(Unpacker(), batch, header.parse(batch), keys=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


async def test_error_names_only_the_first_records_without_a_key() -> None:
    """Invariant 98: a small batch can hold millions of them."""
    records = [build.New(None, b"", (), 1_700_000_000_000)] * 5000
    batch = build.batch(records, timestamp_ms=1_700_000_000_000, compression=compression.GZIP)
    with pytest.raises(InvalidRecord) as failure:
        await check(Unpacker(), batch, header.parse(batch), keys=True)
    assert [index for index, _ in failure.value.record_errors] == list(range(1000))


async def test_last_record_without_a_key_of_a_large_batch_is_refused(
    decompressions: list[Decompression],
) -> None:
    records = [RECORD] * 999 + [build.New(None, b"", (), 1_700_000_000_000)]
    batch = build.batch(records, timestamp_ms=1_700_000_000_000, compression=compression.GZIP)
    with pytest.raises(InvalidRecord, match="need keys"):
        await check(Unpacker(), batch, header.parse(batch), keys=True)


def test_gzip_of_several_members_is_read() -> None:
    parts = [b"a" * 100_000, b"", b"b" * 5, bytes(3 << 20)]
    packed = b"".join(gzip.compress(part) for part in parts)
    assert bytes(compression.decompress(compression.GZIP, packed, 1 << 23)) == b"".join(parts)


def test_gzip_of_thousands_of_members_is_refused() -> None:
    """Invariant 98: each member, also an empty one, costs time and a copy of the rest."""
    packed = gzip.compress(b"") * 50_000
    with pytest.raises(compression.BadPayload, match="members"):
        compression.decompress(compression.GZIP, packed, 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["cleanup.policy=compact", "compression.type=lz4", "cleanup.policy=delete"]
)
async def test_other_clients_are_served_while_a_large_payload_is_decompressed(
    tmp_path: Path, setting: str
) -> None:
    """Invariant 98: a small batch of 100 MB, whose records are checked."""
    bomb, _ = bomb_batch(100 << 20, compression.ZSTD)
    assert len(bomb) < HERE_BYTES
    async with (
        running(tmp_path, kwire_produce_validation="records") as server,
        await TrioWireClient.connect(*server.address) as producer,
        await TrioWireClient.connect(*server.address) as client,
    ):
        await create_topic(producer, setting)
        answer_count = 0

        async def send_requests() -> None:
            nonlocal answer_count
            while True:
                await client.call(ApiVersionsRequest(), 0)
                answer_count += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_requests)
            await producer.call(produce_request(bomb), 9)
            nursery.cancel_scope.cancel()
    assert answer_count >= 10


async def create_topic(client: TrioWireClient, setting: str) -> None:
    key, _, value = setting.partition("=")
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, configs=[config]
    )
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0


def produce_request(batch: bytes) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[topic(name="t", partition_data=[partition])]
    )
