"""Consumer groups with kafka-python: assignments and committed offsets."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.structs import OffsetAndMetadata

from compat_tests.harness.wait import collect, eventually
from compat_tests.kafka_python.clients import (
    admin,
    consumer,
    create,
    fill,
    members,
    poll,
    producer,
    read,
    settle,
)

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
COOPERATIVE = [CooperativeStickyAssignor]


@pytest.mark.parametrize(
    ("assignor", "sizes"),
    [("range", [2, 4]), ("roundrobin", [3, 3]), ("sticky", [3, 3]), ("cooperative-sticky", [3, 3])],
)
def test_assignors(broker, unique, group, assignor, sizes):
    """Every assignor shares two topics of three partitions; every record is read once."""
    first, second = unique("a"), unique("b")
    for topic in (first, second):
        create(broker.address, topic, 3)
    strategy = {"partition_assignment_strategy": [ASSIGNORS[assignor]], "group_id": group}
    with members(broker.address, 2, first, second, **strategy) as both:
        settle(both, sizes)
        with admin(broker.address) as client:
            described = client.describe_groups([group])[group]
        assert described["protocol_data"] == assignor
        assert len(described["members"]) == 2
        with producer(broker.address) as client:
            for number in range(60):
                client.send((first, second)[number % 2], b"%d" % number, partition=number % 3)
        eventually(lambda: sum(len(m.records) for m in both) >= 60, "all records")
        records = [record for member in both for record in member.records]
    assert sorted(int(record.value) for record in records) == list(range(60))


def test_a_leaving_member_hands_over(broker, topic, group):
    create(broker.address, topic, 4)
    with members(broker.address, 2, topic, group_id=group) as (stays, leaves):
        settle([stays, leaves], [2, 2])
        leaves.close()
        settle([stays], [4])


def test_a_member_that_stops_polling_is_dropped(broker, topic, group):
    create(broker.address, topic, 2)
    limits = {"max_poll_interval_ms": 3000, "session_timeout_ms": 6000}
    with members(broker.address, 2, topic, group_id=group, **limits) as (stays, stuck):
        settle([stays, stuck], [1, 1])
        stuck.stuck.set()
        settle([stays], [2])


def test_added_partitions_are_picked_up(broker, topic, group):
    create(broker.address, topic, 1)
    # A poll that ends while the leader rejoins would lose it for good: see Member.
    with members(broker.address, 2, topic, poll_ms=60_000, group_id=group) as both:
        settle(both, [0, 1])
        with admin(broker.address) as client:
            client.create_partitions({topic: 4})
        settle(both, [2, 2])
        for member in both:
            member.stop()
        with producer(broker.address) as client:
            for partition in range(4):
                client.send(topic, b"%d" % partition, partition=partition)
        # A stopped member's last poll ends with the first records that it reads.
        eventually(lambda: all(member.records for member in both), "records for both members")
    records = [record for member in both for record in member.records]
    assert {int(record.value) for record in records} <= set(range(4))
    assert len({record.partition for record in records}) == len(records) >= 2


def test_a_changed_subscription_rebalances(broker, unique, group):
    first, second = unique("a"), unique("b")
    for topic in (first, second):
        create(broker.address, topic, 2)
    with members(broker.address, 2, first, group_id=group) as (stays, moves):
        settle([stays, moves], [1, 1])
        moves.do(lambda client: client.subscribe([second]))
        assignments = settle([stays, moves], [2, 2])
    assert [{p.topic for p in assignment} for assignment in assignments] == [{first}, {second}]


def test_cooperative_members_keep_what_they_had(broker, topic, group):
    create(broker.address, topic, 4)
    with members(
        broker.address, 1, topic, group_id=group, partition_assignment_strategy=COOPERATIVE
    ) as (first,):
        (before,) = settle([first], [4])
        with members(
            broker.address, 1, topic, group_id=group, partition_assignment_strategy=COOPERATIVE
        ) as (second,):
            one_has, two_has = settle([first, second], [2, 2])
    assert one_has < before
    assert two_has == before - one_has


def test_static_members_come_back_to_the_same_partitions(broker, topic, group):
    create(broker.address, topic, 4)

    def static(name):
        return members(broker.address, 1, topic, group_id=group, group_instance_id=name)

    def described_members():
        with admin(broker.address) as client:
            return client.describe_groups([group])[group]["members"]

    with static("one") as (first,):
        with static("two") as (second,):
            _, assignment = settle([first, second], [2, 2])
            generation = second.client.group_metadata().generation_id
        assert {member["group_instance_id"] for member in described_members()} == {"one", "two"}
        with static("two") as (back,):
            _, again = settle([first, back], [2, 2])
            assert back.client.group_metadata().generation_id == generation
        assert again == assignment


def member(broker, group, topic, **settings):
    return consumer(broker.address, topic, group_id=group, heartbeat_interval_ms=200, **settings)


def test_two_groups_each_get_all(broker, topic, unique):
    create(broker.address, topic, 3)
    with producer(broker.address) as client:
        for number in range(90):
            client.send(topic, b"%d" % number, partition=number % 3)
    for group in (unique("one"), unique("two")):
        records = read(broker.address, topic, 90, group_id=group)
        assert sorted(int(record.value) for record in records) == list(range(90))


def test_commit_sync_async_and_metadata(broker, topic, group):
    create(broker.address, topic)
    partition = TopicPartition(topic, 0)
    fill(broker.address, topic, [b"%d" % number for number in range(10)])
    with member(broker, group, topic, enable_auto_commit=False) as client:
        collect(lambda: poll(client), 10)
        assert client.committed(partition) is None
        client.commit({partition: OffsetAndMetadata(3, "note ü", -1)})
        assert client.committed(partition, metadata=True)[:2] == (3, "note ü")
        done = []
        client.commit_async(
            {partition: OffsetAndMetadata(5, "", -1)}, callback=lambda *result: done.append(result)
        )
        eventually(lambda: poll(client, 50) or done, "the callback of an async commit")
        assert client.committed(partition) == 5
    with member(broker, group, topic, enable_auto_commit=False) as client:
        assert [int(r.value) for r in collect(lambda: poll(client), 5)] == [5, 6, 7, 8, 9]
        client.commit()
        assert client.committed(partition) == 10


def test_auto_commit_on_close_resumes_after_it(broker, topic, group):
    create(broker.address, topic)
    fill(broker.address, topic, [b"0", b"1", b"2"])
    with member(broker, group, topic) as client:
        assert len(collect(lambda: poll(client), 3)) == 3
        client.close(autocommit=True)
    fill(broker.address, topic, [b"3"])
    with member(broker, group, topic) as client:
        assert [r.value for r in collect(lambda: poll(client), 1)] == [b"3"]


def test_metadata_that_is_too_long_is_refused(broker, topic, group):
    create(broker.address, topic)
    partition = TopicPartition(topic, 0)
    with member(broker, group, topic, enable_auto_commit=False) as client:
        fill(broker.address, topic, [b"x"])
        assert collect(lambda: poll(client), 1)
        with pytest.raises(Exception, match="OffsetMetadataTooLarge"):
            client.commit({partition: OffsetAndMetadata(1, "x" * 5000, -1)})
        assert client.committed(partition) is None
