"""Payloads that grow when decompressed: limits of size and number, their thread, other requests."""

import contextlib
import gzip
import threading
import tracemalloc
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.errors import InvalidRecord
from kwire.records import build, compression, header, iterate
from kwire.replica import unpacking
from kwire.replica.unpacking import HERE_BYTES, THREADS, Unpacker
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import running

CODECS: Final = range(1, 5)
RECORD: Final = build.New(b"key", bytes(100), (), 1_700_000_000_000)


def batch_of(size: int, codec: int) -> tuple[bytes, header.BatchHeader]:
    """One record whose value unpacks to so many bytes, but packs to next to nothing."""
    record = build.New(b"key", bytes(size), (), 1_700_000_000_000)
    made = build.batch([record], timestamp_ms=1_700_000_000_000, compression=codec)
    return made, header.parse(made)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Whether each payload was unpacked on the loop's thread, and to how many bytes."""
    seen: list[tuple[bool, int]] = []
    loop, original = threading.get_ident(), compression.decompress

    def decompress(codec: int, data: Any, limit: int) -> Any:
        try:
            plain = original(codec, data, limit)
        except compression.BadPayload:
            seen.append((threading.get_ident() == loop, limit))
            raise
        seen.append((threading.get_ident() == loop, len(plain)))
        return plain

    for module in (unpacking, compression):
        monkeypatch.setattr(module, "decompress", decompress)
    return seen


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("what", ["keys", "codec"])
async def test_payload_that_grows_does_so_in_a_thread(
    unpacked: list[tuple[bool, int]], codec: int, what: str
) -> None:
    """Invariant 98: the loop unpacks no more than it would unpack of any small batch."""
    batch, head = batch_of(4 << 20, codec)
    if what == "keys":
        await Unpacker().check_keys(batch, head)
    else:
        made = await Unpacker().recompress(batch, head, compression.NONE)
        assert len(made) > 4 << 20
    assert max(size for on_loop, size in unpacked if not on_loop) > 4 << 20
    assert all(size <= HERE_BYTES for on_loop, size in unpacked if on_loop)


@pytest.mark.parametrize("codec", CODECS)
async def test_small_payload_needs_no_thread(unpacked: list[tuple[bool, int]], codec: int) -> None:
    batch, head = batch_of(1000, codec)
    await Unpacker().check_keys(batch, head)
    await Unpacker().recompress(batch, head, compression.NONE)
    assert [on_loop for on_loop, _ in unpacked] == [True, True]


@pytest.mark.parametrize("codec", CODECS)
async def test_payload_beyond_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    """Invariant 98: bounded in size."""
    monkeypatch.setattr(unpacking, "PAYLOAD_MAX", 1 << 20)
    batch, head = batch_of(4 << 20, codec)
    with pytest.raises(InvalidRecord):
        await Unpacker().check_keys(batch, head)
    with pytest.raises(InvalidRecord):
        await Unpacker().recompress(batch, head, compression.NONE)


async def test_no_more_than_a_few_are_unpacked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 98: each may take as much memory as the limit allows, so their number counts."""
    most, now, guard = 0, 0, threading.Lock()  # lock: of the test's threads
    crowd = threading.Barrier(THREADS + 1)
    batch, head = batch_of(1 << 20, compression.GZIP)
    original = build.recompress

    def recompress(*arguments: Any) -> bytes:
        nonlocal most, now
        if threading.current_thread() is threading.main_thread():
            return original(*arguments)
        with guard:
            now += 1
            most = max(most, now)
        with contextlib.suppress(threading.BrokenBarrierError):
            crowd.wait(0.05)  # more at once than may be would meet here
        with guard:
            now -= 1
        return original(*arguments)

    monkeypatch.setattr(build, "recompress", recompress)
    subject = Unpacker()
    async with trio.open_nursery() as nursery:
        for _ in range(4 * THREADS):
            nursery.start_soon(subject.recompress, batch, head, compression.NONE)
    assert 1 <= most <= THREADS


async def test_no_more_than_a_few_are_held_while_they_are_walked(
    monkeypatch: pytest.MonkeyPatch, unpacked: list[tuple[bool, int]]
) -> None:
    """Invariant 98: the memory is taken until the last record was looked at."""
    batch = build.batch([RECORD] * 999, timestamp_ms=1_700_000_000_000, compression=1)
    most = finished = 0

    async def check() -> None:
        nonlocal finished
        await subject.check_keys(batch, header.parse(batch))
        finished += 1

    def walk(*arguments: Any) -> Any:
        nonlocal most
        most = max(most, sum(not here for here, _ in unpacked) - finished)
        return walked(*arguments)

    walked = iterate.keys
    monkeypatch.setattr(iterate, "keys", walk)
    monkeypatch.setattr(unpacking, "_SLICE_RECORDS", 1)
    subject = Unpacker()
    async with trio.open_nursery() as nursery:
        for _ in range(4 * THREADS):
            nursery.start_soon(check)
    assert finished == 4 * THREADS
    assert 1 <= most <= THREADS


async def test_headers_of_a_record_are_passed_over() -> None:
    """Invariant 98: 300 bytes can hold a million headers, seconds of work on the loop."""
    record = build.New(b"key", b"", ((b"", None),) * 100_000, 1_700_000_000_000)
    batch = build.batch([record], timestamp_ms=1_700_000_000_000, compression=compression.ZSTD)
    tracemalloc.start()
    try:
        await Unpacker().check_keys(batch, header.parse(batch))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


async def test_only_the_first_of_many_records_without_a_key_are_named() -> None:
    """Invariant 98: a small batch can hold millions of them."""
    records = [build.New(None, b"", (), 1_700_000_000_000)] * 5000
    batch = build.batch(records, timestamp_ms=1_700_000_000_000, compression=compression.GZIP)
    with pytest.raises(InvalidRecord) as refused:
        await Unpacker().check_keys(batch, header.parse(batch))
    assert [index for index, _ in refused.value.record_errors] == list(range(unpacking.KEYLESS_MAX))


async def test_key_of_every_record_of_a_large_batch_is_looked_at(
    unpacked: list[tuple[bool, int]],
) -> None:
    records = [RECORD] * 999 + [build.New(None, b"", (), 1_700_000_000_000)]
    batch = build.batch(records, timestamp_ms=1_700_000_000_000, compression=compression.GZIP)
    with pytest.raises(InvalidRecord, match="need keys"):
        await Unpacker().check_keys(batch, header.parse(batch))


def test_gzip_of_several_members_is_read() -> None:
    parts = [b"a" * 100_000, b"", b"b" * 5, bytes(3 << 20)]
    packed = b"".join(gzip.compress(part) for part in parts)
    assert bytes(compression.decompress(compression.GZIP, packed, 1 << 23)) == b"".join(parts)


def test_gzip_of_thousands_of_members_is_refused() -> None:
    """Invariant 98: each member costs time and a copy of what follows, whatever it holds."""
    packed = gzip.compress(b"") * 50_000
    with pytest.raises(compression.BadPayload, match="members"):
        compression.decompress(compression.GZIP, packed, 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["cleanup.policy=compact", "compression.type=lz4"])
async def test_others_are_served_while_a_bomb_unpacks(tmp_path: Path, setting: str) -> None:
    """Invariant 98: a small batch that unpacks to 100 MB on a topic that has to look inside."""
    bomb, _ = batch_of(100 << 20, compression.ZSTD)
    assert len(bomb) < HERE_BYTES
    async with (
        running(tmp_path) as server,
        await TrioWireClient.connect(*server.address) as bomber,
        await TrioWireClient.connect(*server.address) as witness,
    ):
        await topic_with(bomber, setting)
        answered = 0

        async def ask() -> None:
            nonlocal answered
            while True:
                await witness.call(ApiVersionsRequest(), 0)
                answered += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await bomber.call(produce(bomb), 9)
            nursery.cancel_scope.cancel()
    assert answered >= 10


async def topic_with(client: TrioWireClient, setting: str) -> None:
    key, _, value = setting.partition("=")
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, configs=[config]
    )
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0


def produce(batch: bytes) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[topic(name="t", partition_data=[partition])]
    )
