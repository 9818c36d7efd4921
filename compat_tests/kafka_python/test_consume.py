"""The guarantees of a kafka-python consumer without a group to its user."""

from __future__ import annotations

import time

import pytest
from kafka import TopicPartition
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from compat_tests.harness.wait import collect, eventually
from compat_tests.kafka_python.clients import admin, consumer, create, fill, poll, producer


def values(records):
    return [int(record.value) for record in records]


@pytest.fixture
def filled_topic(broker, topic):
    """A partition of 100 records whose timestamps are 1000 ms apart."""
    create(broker.address, topic, 2, retention_ms="-1")
    with producer(broker.address) as client:
        for number in range(100):
            client.send(topic, b"%d" % number, partition=0, timestamp_ms=1_000_000 + number * 1000)
    return TopicPartition(topic, 0)


def test_beginning_and_end_offsets(broker, filled_topic):
    empty = TopicPartition(filled_topic.topic, 1)
    with consumer(broker.address) as client:
        assert client.beginning_offsets([filled_topic, empty]) == {filled_topic: 0, empty: 0}
        assert client.end_offsets([filled_topic, empty]) == {filled_topic: 100, empty: 0}


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (0, 0),  # Before the first.
        (1_000_000, 0),  # Exactly the first.
        (1_042_000, 42),
        (1_041_001, 42),  # Between two: the later one.
        (1_099_000, 99),
        (1_099_001, None),  # After the last: no offset.
    ],
)
def test_offset_by_time(broker, filled_topic, timestamp, offset):
    with consumer(broker.address) as client:
        place = client.offsets_for_times({filled_topic: timestamp})[filled_topic]
        assert (place and place.offset) == offset
        assert place is None or place.timestamp == 1_000_000 + place.offset * 1000


def test_seek(broker, filled_topic):
    with consumer(broker.address) as client:
        client.assign([filled_topic])
        client.seek(filled_topic, 90)
        assert values(collect(lambda: poll(client), 10)) == list(range(90, 100))
        assert client.position(filled_topic) == 100
        client.seek_to_beginning(filled_topic)
        assert client.position(filled_topic) == 0
        assert values(collect(lambda: poll(client), 100)) == list(range(100))
        client.seek_to_end(filled_topic)
        assert client.position(filled_topic) == 100
        assert poll(client, 300) == []


def test_seek_past_the_end_resets_by_policy(broker, filled_topic):
    with consumer(broker.address) as client:
        client.assign([filled_topic])
        client.seek(filled_topic, 5000)
        assert values(collect(lambda: poll(client), 100)) == list(range(100))
    with consumer(broker.address, auto_offset_reset="none") as client:
        client.assign([filled_topic])
        client.seek(filled_topic, 5000)
        with pytest.raises((OffsetOutOfRangeError, NoOffsetForPartitionError)):
            eventually(lambda: poll(client), "the error")


def test_latest_reads_only_what_comes_after(broker, filled_topic):
    with consumer(broker.address, auto_offset_reset="latest") as client:
        client.assign([filled_topic])
        assert client.position(filled_topic) == 100
        fill(broker.address, filled_topic.topic, [b"100"], partition=0)
        assert values(collect(lambda: poll(client), 1)) == [100]


def test_pause_and_resume(broker, filled_topic):
    other = TopicPartition(filled_topic.topic, 1)
    with consumer(broker.address) as client:
        client.assign([filled_topic, other])
        client.pause(filled_topic)
        assert client.paused() == {filled_topic}
        fill(broker.address, filled_topic.topic, [b"7"], partition=1)
        assert values(collect(lambda: poll(client), 1)) == [7]
        assert poll(client, 300) == []
        client.resume(filled_topic)
        assert values(collect(lambda: poll(client), 100)) == list(range(100))


def test_max_poll_records(broker, filled_topic):
    with consumer(broker.address, max_poll_records=7) as client:
        client.assign([filled_topic])
        sizes: list[int] = []
        while sum(sizes) < 100:
            sizes.append(len(poll(client, 1000)))
        assert max(sizes) == 7


def test_small_fetches_still_make_progress(broker, filled_topic):
    with consumer(broker.address, max_partition_fetch_bytes=1, fetch_max_bytes=1) as client:
        client.assign([filled_topic])
        assert values(collect(lambda: poll(client), 100)) == list(range(100))


def test_a_fetch_waits_for_min_bytes_but_not_longer_than_max_wait(broker, topic):
    """A fetch waits at least as long as Kafka promises; the upper bound only detects a hang."""
    create(broker.address, topic)
    fill(broker.address, topic, [b"x"])
    partition = TopicPartition(topic, 0)
    wait = {"fetch_min_bytes": 100_000, "fetch_max_wait_ms": 1500}
    with consumer(broker.address, **wait) as client:
        client.assign([partition])
        assert client.position(partition) == 0
        started = time.monotonic()
        assert len(collect(lambda: poll(client), 1)) == 1
        assert time.monotonic() - started > 1.2


def test_a_waiting_fetch_wakes_when_there_is_enough(broker, topic):
    create(broker.address, topic)
    partition = TopicPartition(topic, 0)
    wait = {"fetch_min_bytes": 1, "fetch_max_wait_ms": 25_000}
    with consumer(broker.address, **wait) as client:
        client.assign([partition])
        assert client.position(partition) == 0
        assert poll(client, 500) == []
        started = time.monotonic()
        fill(broker.address, topic, [b"x"])
        assert len(collect(lambda: poll(client, 1000), 1)) == 1
        assert time.monotonic() - started < 20


def test_records_before_a_deletion_are_gone(broker, filled_topic):
    with admin(broker.address) as client:
        client.delete_records({filled_topic: 40})
    with consumer(broker.address) as client:
        assert client.beginning_offsets([filled_topic]) == {filled_topic: 40}
        client.assign([filled_topic])
        client.seek(filled_topic, 10)
        assert values(collect(lambda: poll(client), 60)) == list(range(40, 100))


def test_a_pattern_finds_topics_that_come_later(broker, unique, group):
    prefix = unique("regex")
    create(broker.address, f"{prefix}-a")
    fill(broker.address, f"{prefix}-a", [b"1"])
    with consumer(broker.address, group_id=group, metadata_max_age_ms=500) as client:
        client.subscribe(pattern=f"^{prefix}-.*")
        assert values(collect(lambda: poll(client), 1)) == [1]
        create(broker.address, f"{prefix}-b")
        fill(broker.address, f"{prefix}-b", [b"2"])
        assert values(collect(lambda: poll(client), 1)) == [2]
