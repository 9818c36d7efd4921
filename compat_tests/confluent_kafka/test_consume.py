"""The guarantees of a librdkafka consumer to its user: positions, groups, commits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, Message, TopicPartition
from confluent_kafka.admin import NewPartitions

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    owned_partitions,
    poll,
    producer,
    read,
    settle,
)
from compat_tests.harness.wait import collect, eventually


def values(messages):
    return [int(message.value()) for message in messages]


@pytest.fixture
def filled_topic(broker, topic):
    """A topic of 100 records whose timestamps are 1000 ms apart."""
    create(broker.address, topic, retention_ms="-1")
    messages = [
        {"topic": topic, "value": b"%d" % i, "timestamp": 1_000_000 + i * 1000} for i in range(100)
    ]
    deliver(producer(broker.address), messages)
    return topic


def test_watermarks_and_seek(broker, filled_topic, group):
    with consumer(broker.address, group) as client:
        assert client.get_watermark_offsets(TopicPartition(filled_topic, 0), timeout=30) == (
            0,
            100,
        )
        client.assign([TopicPartition(filled_topic, 0, 95)])
        assert values(collect(lambda: poll(client), 5)) == list(range(95, 100))
        client.seek(TopicPartition(filled_topic, 0, 10))
        assert values(collect(lambda: poll(client), 90)) == list(range(10, 100))
        client.seek(TopicPartition(filled_topic, 0, OFFSET_BEGINNING))
        assert values(collect(lambda: poll(client), 100)) == list(range(100))
        client.assign([TopicPartition(filled_topic, 0, OFFSET_END)])
        assert poll(client, 0.5) == []


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(0, 0), (1_042_000, 42), (1_041_001, 42), (1_099_001, -1)]
)
def test_offsets_for_times(broker, filled_topic, group, timestamp, offset):
    with consumer(broker.address, group) as client:
        (place,) = client.offsets_for_times(
            [TopicPartition(filled_topic, 0, timestamp)], timeout=30
        )
    assert place.offset == offset


def test_pause_and_resume(broker, filled_topic, group):
    with consumer(broker.address, group) as client:
        client.assign([TopicPartition(filled_topic, 0, 0)])
        assert values(collect(lambda: poll(client, most=1), 1)) == [0]
        client.pause([TopicPartition(filled_topic, 0)])
        assert poll(client, 0.5) == []
        client.resume([TopicPartition(filled_topic, 0)])
        assert values(collect(lambda: poll(client), 99)) == list(range(1, 100))


def test_partition_eof(broker, filled_topic, group):
    with consumer(broker.address, group, enable_partition_eof=True) as client:
        client.assign([TopicPartition(filled_topic, 0, 98)])
        messages = []

        def end():
            message = client.poll(0.2)
            messages.append(message)
            return message and message.error()

        assert eventually(end, "the end of the partition").name() == "_PARTITION_EOF"
        assert values([m for m in messages if m and not m.error()]) == [98, 99]


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [("range", [2, 4]), ("roundrobin", [3, 3]), ("cooperative-sticky", [3, 3])],
)
def test_assignors(broker, unique, group, strategy, sizes):
    topics = [unique("a"), unique("b")]
    for topic in topics:
        create(broker.address, topic, 3)
    settings = {"partition_assignment_strategy": strategy}
    records: list[Message] = []
    with (
        consumer(broker.address, group, **settings) as first,
        consumer(broker.address, group, **settings) as second,
    ):
        first.subscribe(topics)
        second.subscribe(topics)
        settle([first, second], sizes, records.append)
        messages = [
            {"topic": topics[i % 2], "partition": i % 3, "value": b"%d" % i} for i in range(60)
        ]
        deliver(producer(broker.address), messages)
        records += collect(lambda: poll(first, 0.05) + poll(second, 0.05), 60 - len(records))
    assert sorted(values(records)) == list(range(60))


def test_join_leave_and_added_partitions(broker, topic, group):
    create(broker.address, topic, 2)
    with consumer(broker.address, group) as first:
        first.subscribe([topic])
        settle([first], [2])
        with consumer(broker.address, group) as second:
            second.subscribe([topic])
            settle([first, second], [1, 1])
        settle([first], [2])
        client = admin(broker.address)
        client.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
        settle([first], [6])


def test_a_crashed_member_times_out(broker, topic, group, tmp_path):
    """A killed member, which sends no LeaveGroup, is removed after its session timeout."""
    create(broker.address, topic, 2)
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 6000, 'heartbeat.interval.ms': 200})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while True: c.poll(0.1)\n"
    )
    arguments = [sys.executable, "-c", program, broker.address, group, topic]
    with consumer(broker.address, group, session_timeout_ms=6000) as stays:
        stays.subscribe([topic])
        crashing = subprocess.Popen(arguments)
        try:
            settle([stays], [1])
        finally:
            crashing.kill()
            crashing.wait()
        settle([stays], [2])


def test_cooperative_members_keep_what_they_had(broker, topic, group):
    create(broker.address, topic, 4)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    revoked = []
    with consumer(broker.address, group, **settings) as first:
        first.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(len(partitions)))
        (before,) = settle([first], [4])
        with consumer(broker.address, group, **settings) as second:
            second.subscribe([topic])
            remaining, moved = settle([first, second], [2, 2])
        assert revoked == [2]
        assert remaining < before
        assert moved == before - remaining


def test_static_membership(broker, topic, group):
    create(broker.address, topic, 4)

    def static(name):
        return consumer(broker.address, group, group_instance_id=name, session_timeout_ms=45000)

    rebalances = []
    with static("one") as first:
        first.subscribe([topic], on_assign=lambda _, partitions: rebalances.append(partitions))
        with static("two") as second:
            second.subscribe([topic])
            _, assignment = settle([first, second], [2, 2])
        before = len(rebalances)
        with static("two") as back:
            back.subscribe([topic])
            _, again = settle([first, back], [2, 2])
        assert again == assignment
        assert len(rebalances) == before


def test_a_static_member_is_fenced_by_its_double(broker, topic, group):
    create(broker.address, topic, 2)
    with (
        consumer(broker.address, group, group_instance_id="same") as first,
        consumer(broker.address, group, group_instance_id="same") as second,
    ):
        first.subscribe([topic])
        settle([first], [2])
        second.subscribe([topic])
        settle([second], [2])

        def poll_error():
            try:
                message = first.poll(0.1)
            except KafkaException as error:
                return error.args[0]
            return message and message.error()

        error = eventually(poll_error, "the first member gets an error")
        assert error.name() in ("_FATAL", "FENCED_INSTANCE_ID")


def test_commit_sync_async_metadata(broker, filled_topic, group):
    partition = TopicPartition(filled_topic, 0)
    with consumer(broker.address, group) as client:
        assert client.committed([partition], timeout=30)[0].offset < 0
        client.commit(offsets=[TopicPartition(filled_topic, 0, 30, "note ü")], asynchronous=False)
        (committed,) = client.committed([partition], timeout=30)
        assert (committed.offset, committed.metadata) == (30, "note ü")
        client.commit(offsets=[TopicPartition(filled_topic, 0, 40)], asynchronous=True)
        eventually(lambda: client.committed([partition], timeout=30)[0].offset == 40, "offset 40")
    with consumer(broker.address, group) as client:
        client.subscribe([filled_topic])
        assert values(collect(lambda: poll(client), 60)) == list(range(40, 100))


def test_stored_offsets_are_committed_on_close(broker, filled_topic, group):
    with consumer(
        broker.address, group, enable_auto_commit=True, enable_auto_offset_store=False
    ) as client:
        client.subscribe([filled_topic])
        for message in collect(lambda: poll(client), 100):
            if message.offset() == 49:
                client.store_offsets(message)
    with consumer(broker.address, group) as client:
        client.subscribe([filled_topic])
        assert values(collect(lambda: poll(client), 50)) == list(range(50, 100))


def test_two_groups_each_get_all(broker, filled_topic, unique):
    for group in (unique("one"), unique("two")):
        with consumer(broker.address, group) as client:
            client.subscribe([filled_topic])
            assert values(collect(lambda: poll(client), 100)) == list(range(100))


def test_a_regex_subscription(broker, unique, group):
    prefix = unique("regex")
    create(broker.address, f"{prefix}-a")
    with consumer(broker.address, group) as client:
        client.subscribe([f"^{prefix}-.*"])
        settle([client], [1])
        create(broker.address, f"{prefix}-b")
        settle([client], [2])
        assert {topic for topic, _ in owned_partitions(client)} == {f"{prefix}-a", f"{prefix}-b"}


def test_isolation_levels_read_plain_records_alike(broker, filled_topic):
    for level in ("read_committed", "read_uncommitted"):
        messages = read(broker.address, filled_topic, 100, isolation_level=level)
        assert values(messages) == list(range(100))
