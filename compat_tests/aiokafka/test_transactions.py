"""Transactions of aiokafka producers."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from compat_tests.aiokafka.clients import collect, consumer, create, poll, producer, run

COMMITTED = {"isolation_level": "read_committed"}


async def write(client, topic, values):
    for value in values:
        await client.send_and_wait(topic, value.encode(), partition=0)


async def visible(address, topic, count, **settings):
    async with consumer(address, topic, **settings) as reader:
        return [record.value.decode() for record in await collect(reader, count)]


def test_committed_transactions_are_read_and_aborted_ones_are_not(broker, topic, unique):
    async def main():
        await create(broker.address, topic)
        async with producer(broker.address, transactional_id=unique("txn")) as client:
            for number in range(6):
                await client.begin_transaction()
                await write(client, topic, [f"{number}-{index}" for index in range(3)])
                if number % 2 == 0:
                    await client.commit_transaction()
                else:
                    await client.abort_transaction()
        expected = [f"{number}-{index}" for number in (0, 2, 4) for index in range(3)]
        assert await visible(broker.address, topic, 9, **COMMITTED) == expected
        assert len(await visible(broker.address, topic, 18)) == 18

    run(main())


async def fail_in_a_transaction(client, topic):
    async with client.transaction():
        await write(client, topic, ["undone"])
        raise RuntimeError


def test_error_in_the_context_aborts_the_transaction(broker, topic, unique):
    async def main():
        await create(broker.address, topic)
        async with producer(broker.address, transactional_id=unique("txn")) as client:
            with pytest.raises(RuntimeError):
                await fail_in_a_transaction(client, topic)
            async with client.transaction():
                await write(client, topic, ["done"])
        assert await visible(broker.address, topic, 1, **COMMITTED) == ["done"]

    run(main())


def test_open_transaction_hides_its_records_and_all_after_them(broker, topic, unique):
    async def main():
        await create(broker.address, topic)
        async with (
            producer(broker.address, transactional_id=unique("txn")) as client,
            producer(broker.address) as plain,
            consumer(broker.address, topic, **COMMITTED) as reader,
        ):
            await client.begin_transaction()
            await write(client, topic, ["open"])
            await write(plain, topic, ["plain"])
            assert await poll(reader, 1000) == []
            await client.commit_transaction()
            assert [r.value for r in await collect(reader, 2)] == [b"open", b"plain"]

    run(main())


def test_newer_producer_fences_the_older(broker, topic, unique):
    async def main():
        await create(broker.address, topic)
        name = unique("txn")
        async with producer(broker.address, transactional_id=name) as zombie:
            await zombie.begin_transaction()
            await write(zombie, topic, ["zombie"])
            async with (
                producer(broker.address, transactional_id=name) as heir,
                heir.transaction(),
            ):
                await write(heir, topic, ["heir"])
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
        assert await visible(broker.address, topic, 1, **COMMITTED) == ["heir"]

    run(main())


def test_transaction_that_takes_too_long_is_aborted(broker, topic, unique):
    async def main():
        await create(broker.address, topic)
        settings = {"transactional_id": unique("txn"), "transaction_timeout_ms": 1000}
        async with (
            producer(broker.address, **settings) as client,
            producer(broker.address) as plain,
        ):
            await client.begin_transaction()
            await write(client, topic, ["late"])
            await write(plain, topic, ["after"])
            assert await visible(broker.address, topic, 1, **COMMITTED) == ["after"]
            with pytest.raises(KafkaError):
                await client.commit_transaction()

    run(main())


def test_offsets_are_committed_with_the_transaction(broker, topic, group, unique):
    async def main():
        source = unique("source")
        place = TopicPartition(source, 0)
        await create(broker.address, topic)
        await create(broker.address, source)
        async with producer(broker.address) as plain:
            await write(plain, source, [str(number) for number in range(20)])
        async with (
            producer(broker.address, transactional_id=unique("txn")) as client,
            consumer(broker.address, source, group_id=group) as reader,
        ):
            records = await collect(reader, 20)
            for position, commit in ((10, True), (20, False)):
                await client.begin_transaction()
                values = [r.value.decode() for r in records[position - 10 : position]]
                await write(client, topic, values)
                offsets = {place: OffsetAndMetadata(position, "note")}
                await client.send_offsets_to_transaction(offsets, group)
                if commit:
                    await client.commit_transaction()
                else:
                    await client.abort_transaction()
            assert await reader.committed(place) == 10
        values = await visible(broker.address, topic, 10, **COMMITTED)
        assert values == [str(number) for number in range(10)]

    run(main())
