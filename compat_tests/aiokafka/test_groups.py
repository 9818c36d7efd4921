"""aiokafka in consumer groups."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from compat_tests.aiokafka.clients import (
    admin,
    collect,
    consumer,
    create,
    eventually,
    producer,
    run,
    settle,
)


async def send(address, topic, numbers, partitions=1):
    async with producer(address) as client:
        for number in numbers:
            await client.send(topic, b"%d" % number, partition=number % partitions)


@pytest.mark.parametrize(
    ("assignor", "sizes"),
    [
        (RangePartitionAssignor, [2, 4]),
        (RoundRobinPartitionAssignor, [3, 3]),
        (StickyPartitionAssignor, [3, 3]),
    ],
)
def test_assignors(broker, unique, group, assignor, sizes):
    topics = [unique("a"), unique("b")]

    async def main():
        for topic in topics:
            await create(broker.address, topic, 3)
        settings = {"group_id": group, "partition_assignment_strategy": [assignor]}
        async with (
            consumer(broker.address, *topics, **settings) as first,
            consumer(broker.address, *topics, **settings) as second,
        ):
            await settle([first, second], sizes)
            for topic in topics:
                await send(broker.address, topic, range(30), 3)
            counts = {first: 0, second: 0}
            for client in counts:
                expected = 10 * len(client.assignment())
                counts[client] = len(await collect(client, expected))
            assert sum(counts.values()) == 60

    run(main())


def test_join_leave_and_added_partitions(broker, topic, group):
    async def main():
        await create(broker.address, topic, 2)
        async with consumer(broker.address, topic, group_id=group) as first:
            await settle([first], [2])
            async with consumer(broker.address, topic, group_id=group) as second:
                await settle([first, second], [1, 1])
            await settle([first], [2])
            async with admin(broker.address) as client:
                from aiokafka.admin import NewPartitions

                await client.create_partitions({topic: NewPartitions(5)})
            await settle([first], [5])

    run(main())


def test_a_listener_hears_of_each_rebalance(broker, topic, group):
    class Listener(ConsumerRebalanceListener):
        def __init__(self):
            self.assigned = []
            self.revoked = []

        async def on_partitions_revoked(self, revoked):
            self.revoked.append(len(revoked))

        async def on_partitions_assigned(self, assigned):
            self.assigned.append(len(assigned))

    async def main():
        await create(broker.address, topic, 4)
        listener = Listener()
        async with consumer(broker.address, group_id=group) as first:
            first.subscribe([topic], listener=listener)
            await settle([first], [4])
            async with consumer(broker.address, topic, group_id=group) as second:
                await settle([first, second], [2, 2])
            await settle([first], [4])
            await eventually(lambda: listener.assigned[-1] == 4, "the last assignment")
        assert [size for size in listener.assigned if size] == [4, 2, 4]
        assert [size for size in listener.revoked if size][:2] == [4, 2]

    run(main())


def test_static_membership(broker, topic, group):
    async def main():
        await create(broker.address, topic, 4)

        def static(name):
            settings = {"group_instance_id": name, "session_timeout_ms": 45_000}
            return consumer(broker.address, topic, group_id=group, **settings)

        async with static("one") as first:
            async with static("two") as second:
                _, assignments = await settle([first, second], [2, 2])
            async with static("two") as back:
                _, again = await settle([first, back], [2, 2])
            assert again == assignments

    run(main())


def test_commit_and_resume(broker, topic, group):
    async def main():
        await create(broker.address, topic)
        await send(broker.address, topic, range(10))
        partition = TopicPartition(topic, 0)
        async with consumer(broker.address, topic, group_id=group) as client:
            await collect(client, 10)
            assert await client.committed(partition) is None
            await client.commit({partition: (4, "note")})
            assert await client.committed(partition) == 4
        async with consumer(broker.address, topic, group_id=group) as client:
            assert [int(r.value) for r in await collect(client, 6)] == [4, 5, 6, 7, 8, 9]
            await client.commit()
            assert await client.committed(partition) == 10

    run(main())


def test_two_groups_each_get_all(broker, topic, unique):
    async def main():
        await create(broker.address, topic, 2)
        await send(broker.address, topic, range(40), 2)
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(
                    consumer(broker.address, topic, group_id=unique(name))
                )
                for name in ("one", "two")
            ]
            for reader in readers:
                records = await collect(reader, 40)
                assert sorted(int(record.value) for record in records) == list(range(40))

    run(main())


def test_admin(broker, topic, group):
    async def main():
        await create(broker.address, topic, 2)
        await send(broker.address, topic, range(10), 2)
        async with consumer(broker.address, topic, group_id=group) as reader:
            await collect(reader, 10)
            await reader.commit()
        async with admin(broker.address) as client:
            assert topic in await client.list_topics()
            assert group in {name for name, *_ in await client.list_consumer_groups()}
            offsets = await client.list_consumer_group_offsets(group)
            assert {p.partition: o.offset for p, o in offsets.items()} == {0: 5, 1: 5}
            await client.delete_topics([topic])

            async def is_deleted():
                return topic not in await client.list_topics()

            await eventually(is_deleted, "the topic is deleted on each broker")

    run(main())
