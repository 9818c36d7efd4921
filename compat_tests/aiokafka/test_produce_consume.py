"""aiokafka as producer and as consumer without a group."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from compat_tests.aiokafka.clients import collect, consumer, create, poll, producer, run


async def write_and_read(address, topic, values, **settings):
    async with producer(address, **settings) as client:
        futures = [await client.send(topic, value) for value in values]
        placed = await asyncio.gather(*futures)
    async with consumer(address, topic) as client:
        return placed, await collect(client, len(values))


NOT_ACKNOWLEDGED = pytest.mark.single
"""The mark of tests that lose records on several nodes: a leader refuses them before it leads."""


@pytest.mark.parametrize("acks", [pytest.param(0, marks=NOT_ACKNOWLEDGED), 1, "all"])
def test_acks(broker, topic, acks):
    async def main():
        await create(broker.address, topic)
        values = [b"%d" % number for number in range(50)]
        acknowledgements, records = await write_and_read(broker.address, topic, values, acks=acks)
        assert [record.value for record in records] == values
        if acks != 0:
            assert [metadata.offset for metadata in acknowledgements] == list(range(50))

    run(main())


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker, topic, codec):
    async def main():
        await create(broker.address, topic)
        values = [b"%d " % number + b"abc" * 300 for number in range(200)]
        settings = {"compression_type": codec, "linger_ms": 20}
        _, records = await write_and_read(broker.address, topic, values, **settings)
        assert [record.value for record in records] == values

    run(main())


def test_idempotence_keeps_the_order(broker, topic):
    async def main():
        await create(broker.address, topic)
        values = [b"%d" % number for number in range(2000)]
        settings = {"enable_idempotence": True, "max_batch_size": 300}
        acknowledgements, records = await write_and_read(broker.address, topic, values, **settings)
        assert [metadata.offset for metadata in acknowledgements] == list(range(2000))
        assert [record.value for record in records] == values

    run(main())


def test_a_batch_built_by_hand_and_a_custom_partitioner(broker, topic):
    async def main():
        await create(broker.address, topic, 3)
        choose = {"partitioner": lambda key, every, available: every[len(key) % len(every)]}
        async with producer(broker.address, **choose) as client:
            for key in (b"", b"a", b"bb", b"ccc"):
                assert (await client.send_and_wait(topic, key=key)).partition == len(key) % 3
            batch = client.create_batch()
            for number in range(5):
                batch.append(key=None, value=b"%d" % number, timestamp=None)
            stored = await (await client.send_batch(batch, topic, partition=2))
        assert stored.offset == 1
        async with consumer(broker.address) as client:
            client.assign([TopicPartition(topic, 2)])
            records = await collect(client, 6)
        assert [record.value for record in records] == [None, b"0", b"1", b"2", b"3", b"4"]

    run(main())


def test_nulls_headers_and_timestamps(broker, topic):
    async def main():
        await create(broker.address, topic, retention_ms="-1")
        headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("ü", b"\x00")]
        async with producer(broker.address) as client:
            await client.send_and_wait(topic, b"v", key=None, headers=headers, timestamp_ms=77)
            await client.send_and_wait(topic, None, key=b"k")
            await client.send_and_wait(topic, b"", key=b"")
        async with consumer(broker.address, topic) as client:
            first, second, third = await collect(client, 3)
        assert list(first.headers) == headers
        assert (first.timestamp, first.key, first.value) == (77, None, b"v")
        assert (second.key, second.value) == (b"k", None)
        assert (third.key, third.value) == (b"", b"")

    run(main())


def test_too_large(broker, topic):
    async def main():
        await create(broker.address, topic, max_message_bytes="10000")
        async with producer(broker.address) as client:
            with pytest.raises(MessageSizeTooLargeError):
                await client.send_and_wait(topic, b"x" * 50_000)
            assert (await client.send_and_wait(topic, b"fits")).offset == 0

    run(main())


def test_auto_creation(broker, topic):
    async def main():
        async with producer(broker.address) as client:
            await client.send_and_wait(topic, b"x", partition=3)
            assert await client.partitions_for(topic) == {0, 1, 2, 3}

    run(main())


def test_seek_offsets_and_times(broker, topic):
    async def main():
        await create(broker.address, topic, retention_ms="-1")
        async with producer(broker.address, acks="all") as client:
            for number in range(50):
                await client.send(topic, b"%d" % number, timestamp_ms=1_000_000 + number * 1000)
        partition = TopicPartition(topic, 0)
        async with consumer(broker.address) as client:
            client.assign([partition])
            assert await client.beginning_offsets([partition]) == {partition: 0}
            assert await client.end_offsets([partition]) == {partition: 50}
            for stamp, offset in [(0, 0), (1_042_000, 42), (1_041_001, 42)]:
                assert (await client.offsets_for_times({partition: stamp}))[
                    partition
                ].offset == offset
            assert (await client.offsets_for_times({partition: 9_000_000}))[partition] is None
            client.seek(partition, 45)
            assert [int(r.value) for r in await collect(client, 5)] == [45, 46, 47, 48, 49]
            await client.seek_to_beginning(partition)
            assert len(await collect(client, 50)) == 50
            await client.seek_to_end(partition)
            assert await client.position(partition) == 50
            client.seek(partition, 0)
            client.pause(partition)
            assert await poll(client, 300) == []
            client.resume(partition)
            assert len(await collect(client, 50)) == 50

    run(main())
