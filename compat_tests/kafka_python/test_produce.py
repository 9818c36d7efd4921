"""The guarantees of a kafka-python producer to its user."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.errors import (
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from kafka.partitioner import Partitioner, StickyPartitioner, murmur2

from compat_tests.harness.wait import collect
from compat_tests.kafka_python.clients import consumer, create, fill, poll, producer, read


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker, topic, acks):
    create(broker.address, topic)
    with producer(broker.address, acks=acks, enable_idempotence=acks == "all") as client:
        stored = [client.send(topic, b"%d" % i) for i in range(50)]
        client.flush()
        offsets = [future.get(30).offset for future in stored]
    assert [record.value for record in read(broker.address, topic, 50)] == [
        b"%d" % i for i in range(50)
    ]
    if acks != 0:  # Without an answer the client has no offset.
        assert offsets == list(range(50))


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker, topic, codec):
    create(broker.address, topic)
    values = [b"%d " % i + b"abc" * 300 for i in range(200)]
    with producer(broker.address, compression_type=codec, linger_ms=20) as client:
        for value in values:
            client.send(topic, value)
    assert [record.value for record in read(broker.address, topic, 200)] == values


@pytest.mark.parametrize(
    ("linger_ms", "batch_size"), [(0, 0), (0, 16384), (50, 200), (50, 500_000)]
)
def test_linger_and_batch_size(broker, topic, linger_ms, batch_size):
    create(broker.address, topic)
    with producer(broker.address, linger_ms=linger_ms, batch_size=batch_size) as client:
        for number in range(300):
            client.send(topic, b"%d" % number)
    records = read(broker.address, topic, 300)
    assert [(record.offset, record.value) for record in records] == [
        (number, b"%d" % number) for number in range(300)
    ]


@pytest.mark.parametrize("idempotent", [True, False])
def test_order_in_flight(broker, topic, idempotent):
    create(broker.address, topic)
    settings = {"enable_idempotence": idempotent, "linger_ms": 1, "batch_size": 300}
    in_flight = 5 if idempotent else 1
    with producer(
        broker.address, max_in_flight_requests_per_connection=in_flight, **settings
    ) as client:
        futures = [client.send(topic, b"%d" % number) for number in range(2000)]
        client.flush()
        assert [future.get(30).offset for future in futures] == list(range(2000))
    assert [int(record.value) for record in read(broker.address, topic, 2000)] == list(range(2000))


def test_keys_go_where_their_hash_says(broker, topic):
    create(broker.address, topic, 7)
    keys = [b"key-%d" % number for number in range(100)]
    with producer(broker.address) as client:
        stored = [client.send(topic, key=key, value=key) for key in keys]
        client.flush()
        chosen = [future.get(30).partition for future in stored]
    assert chosen == [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert {(r.key, r.partition) for r in read(broker.address, topic, 100)} == set(
        zip(keys, chosen, strict=True)
    )


def test_sticky_partitioner_fills_whole_batches(broker, topic):
    create(broker.address, topic, 4)
    with producer(broker.address, partitioner=StickyPartitioner(), linger_ms=2000) as client:
        futures = [client.send(topic, b"%d" % number) for number in range(50)]
        client.flush()
        used = {future.get(30).partition for future in futures}
    assert len(used) == 1


def test_custom_partitioner(broker, topic):
    class ByValue(Partitioner):
        def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
            return int(serialized_value) % len(cluster.partitions_for_topic(topic))

    create(broker.address, topic, 3)
    with producer(broker.address, partitioner=ByValue()) as client:
        futures = [client.send(topic, b"%d" % number) for number in range(9)]
        client.flush()
        assert [future.get(30).partition for future in futures] == [0, 1, 2] * 3
    assert sorted((int(r.value), r.partition) for r in read(broker.address, topic, 9)) == [
        (number, number % 3) for number in range(9)
    ]


def test_partition_that_does_not_exist(broker, topic):
    create(broker.address, topic, 2)
    with producer(broker.address, max_block_ms=2000) as client, pytest.raises(Exception):  # noqa: B017, PT011
        client.send(topic, b"x", partition=9).get(30)
    with consumer(broker.address) as client:
        assert client.partitions_for_topic(topic) == {0, 1}


def test_null_and_empty_keys_and_values(broker, topic):
    create(broker.address, topic)
    pairs = [(None, b"v"), (b"", b"v"), (b"k", None), (b"k", b""), (b"", None), (b"", b"")]
    with producer(broker.address) as client:
        for key, value in pairs:
            client.send(topic, key=key, value=value)
    assert [(r.key, r.value) for r in read(broker.address, topic, len(pairs))] == pairs


def test_headers_keep_order_and_duplicates(broker, topic):
    create(broker.address, topic)
    headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("ü", b"\x00\xff")]
    fill(broker.address, topic, [b"x"], headers=headers)
    (record,) = read(broker.address, topic, 1)
    assert list(record.headers) == headers


def test_timestamps_of_the_producer_are_kept(broker, topic):
    create(broker.address, topic, retention_ms="-1")
    with producer(broker.address) as client:
        for stamp in (5, 1_600_000_000_000, 1_500_000_000_000):
            client.send(topic, b"x", timestamp_ms=stamp)
    records = read(broker.address, topic, 3)
    assert [r.timestamp for r in records] == [5, 1_600_000_000_000, 1_500_000_000_000]
    assert {r.timestamp_type for r in records} == {0}


def test_log_append_time(broker, topic):
    create(broker.address, topic, message_timestamp_type="LogAppendTime")
    with producer(broker.address) as client:
        stored = client.send(topic, b"x", timestamp_ms=5)
        client.flush()
        acknowledged_ms = stored.get(30).timestamp
    (record,) = read(broker.address, topic, 1)
    assert record.timestamp_type == 1
    assert record.timestamp == acknowledged_ms > 1_600_000_000_000


def test_large_messages(broker, topic):
    create(broker.address, topic, max_message_bytes="5000000")
    value = bytes(range(256)) * 16_000
    with producer(broker.address, max_request_size=6_000_000) as client:
        client.send(topic, value).get(30)
        client.send(topic, b"small").get(30)
    records = read(broker.address, topic, 2, max_partition_fetch_bytes=1000)
    assert [r.value for r in records] == [value, b"small"]


def test_too_large_is_refused_and_the_next_one_is_stored(broker, topic):
    create(broker.address, topic, max_message_bytes="10000")
    with producer(broker.address, enable_idempotence=False) as client:
        with pytest.raises(MessageSizeTooLargeError):
            client.send(topic, b"x" * 50_000).get(30)
        client.send(topic, b"fits").get(30)
    assert [r.value for r in read(broker.address, topic, 1)] == [b"fits"]


def test_auto_creation_makes_the_default_partitions(broker, topic):
    with producer(broker.address) as client:
        client.send(topic, b"x").get(30)
        assert client.partitions_for(topic) == {0, 1, 2, 3}
    assert [r.value for r in read(broker.address, topic, 1)] == [b"x"]


def test_a_deleted_record_is_a_tombstone_on_a_compacted_topic(broker, topic):
    create(broker.address, topic, cleanup_policy="compact")
    with producer(broker.address) as client:
        client.send(topic, key=b"k", value=b"v").get(30)
        client.send(topic, key=b"k", value=None).get(30)
        with pytest.raises(Exception, match=r"InvalidRecord|87"):
            client.send(topic, value=b"no key").get(30)
    with consumer(broker.address) as client:
        partition = TopicPartition(topic, 0)
        client.assign([partition])
        assert client.end_offsets([partition]) == {partition: 2}
        assert collect(lambda: poll(client), 1)[0].value == b"v"


def test_metadata_of_an_unknown_topic(broker, topic):
    with consumer(broker.address, allow_auto_create_topics=False) as client:
        try:
            partitions = client.partitions_for_topic(topic)
        except UnknownTopicOrPartitionError:
            partitions = None
        assert not partitions
        assert topic not in client.topics()
