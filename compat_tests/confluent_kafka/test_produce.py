"""The guarantees of a librdkafka producer to its user."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from compat_tests.confluent_kafka.clients import create, deliver, producer, read


def numbered_messages(topic, count, **more):
    return [{"topic": topic, "value": b"%d" % number, **more} for number in range(count)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(broker, topic, acks):
    create(broker.address, topic)
    deliver(producer(broker.address, acks=acks), numbered_messages(topic, 50))
    assert [m.value() for m in read(broker.address, topic, 50)] == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker, topic, codec):
    create(broker.address, topic)
    values = [b"%d " % number + b"abc" * 300 for number in range(200)]
    client = producer(broker.address, compression_type=codec, linger_ms=20)
    deliver(client, [{"topic": topic, "value": value} for value in values])
    assert [m.value() for m in read(broker.address, topic, 200)] == values


@pytest.mark.parametrize(("linger_ms", "batch"), [(0, 1), (0, 10_000), (50, 10), (50, 10_000)])
def test_linger_and_batch_size(broker, topic, linger_ms, batch):
    create(broker.address, topic)
    client = producer(broker.address, linger_ms=linger_ms, batch_num_messages=batch)
    delivered = deliver(client, numbered_messages(topic, 300))
    assert [message.offset() for message in delivered] == list(range(300))
    assert [int(m.value()) for m in read(broker.address, topic, 300)] == list(range(300))


def test_idempotence_keeps_the_order(broker, topic):
    create(broker.address, topic)
    client = producer(broker.address, enable_idempotence=True, batch_num_messages=7, linger_ms=1)
    delivered = deliver(client, numbered_messages(topic, 3000))
    assert [message.offset() for message in delivered] == list(range(3000))
    assert [int(m.value()) for m in read(broker.address, topic, 3000)] == list(range(3000))


@pytest.mark.parametrize("name", ["murmur2", "murmur2_random", "consistent", "fnv1a"])
def test_a_key_always_goes_to_one_partition(broker, topic, name):
    create(broker.address, topic, 5)
    keys = [b"key-%d" % (number % 20) for number in range(100)]
    client = producer(broker.address, partitioner=name)
    delivered = deliver(client, [{"topic": topic, "key": key, "value": b""} for key in keys])
    pairs = {(message.key(), message.partition()) for message in delivered}
    assert len(pairs) == 20
    assert len({partition for _, partition in pairs}) > 1


def test_random_and_sticky_partitioner(broker, topic):
    create(broker.address, topic, 4)
    every = producer(broker.address, partitioner="random", sticky_partitioning_linger_ms=0)
    assert len({m.partition() for m in deliver(every, numbered_messages(topic, 200))}) == 4
    sticky = producer(broker.address, linger_ms=1000, sticky_partitioning_linger_ms=60_000)
    deliver(sticky, numbered_messages(topic, 1))  # It cannot choose before it has the metadata.
    assert len({m.partition() for m in deliver(sticky, numbered_messages(topic, 50))}) == 1


def test_explicit_partition(broker, topic):
    create(broker.address, topic, 3)
    client = producer(broker.address)
    messages = [{"topic": topic, "value": b"%d" % i, "partition": i % 3} for i in range(9)]
    deliver(client, messages)
    records = {
        (m.partition(), int(m.value())) for m in read(broker.address, topic, 9, partitions=3)
    }
    assert records == {(number % 3, number) for number in range(9)}


def test_null_and_empty_keys_and_values(broker, topic):
    create(broker.address, topic)
    pairs = [(None, b"v"), (b"", b"v"), (b"k", None), (b"k", b""), (None, None), (b"", b"")]
    deliver(producer(broker.address), [{"topic": topic, "key": k, "value": v} for k, v in pairs])
    assert [(m.key(), m.value()) for m in read(broker.address, topic, len(pairs))] == pairs


def test_headers_keep_order_and_duplicates(broker, topic):
    create(broker.address, topic)
    headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("n", None), ("ü", b"\x00\xff")]
    deliver(producer(broker.address), [{"topic": topic, "value": b"x", "headers": headers}])
    (message,) = read(broker.address, topic, 1)
    assert message.headers() == headers


def test_large_message_and_the_limit(broker, topic):
    create(broker.address, topic, max_message_bytes="3000000")
    client = producer(broker.address, message_max_bytes=9_000_000)
    value = bytes(range(256)) * 10_000
    deliver(client, [{"topic": topic, "value": value}])
    (message,) = read(broker.address, topic, 1)
    assert message.value() == value
    errors = []
    client.produce(topic, b"x" * 4_000_000, on_delivery=lambda error, _: errors.append(error))
    client.flush(30)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_unknown_partition_is_refused(broker, topic):
    create(broker.address, topic, 2)
    client = producer(broker.address, message_timeout_ms=5000)
    codes = []
    try:
        client.produce(
            topic, b"x", partition=7, on_delivery=lambda error, _: codes.append(error.code())
        )
        client.flush(30)
    except KafkaException as refused:
        codes.append(refused.args[0].code())
    assert codes == [KafkaError._UNKNOWN_PARTITION]


def test_auto_creation(broker, topic):
    client = producer(broker.address)
    deliver(client, numbered_messages(topic, 3))
    assert len(client.list_topics(topic, timeout=30).topics[topic].partitions) == 4


def test_timestamps(broker, topic, unique):
    create(broker.address, topic, retention_ms="-1")
    deliver(producer(broker.address), [{"topic": topic, "value": b"x", "timestamp": 12345}])
    (message,) = read(broker.address, topic, 1)
    assert message.timestamp() == (1, 12345)  # CreateTime.
    stamped = unique("append-time")
    create(broker.address, stamped, message_timestamp_type="LogAppendTime")
    deliver(producer(broker.address), [{"topic": stamped, "value": b"x", "timestamp": 12345}])
    (message,) = read(broker.address, stamped, 1)
    kind, timestamp = message.timestamp()
    assert kind == 2
    assert timestamp > 1_600_000_000_000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_only_records_with_old_timestamps_fail_for_them(broker, topic, codec):
    """The others of the batch fail because of them, wherever in the batch these are."""
    hour_ms = 3600 * 1000
    create(broker.address, topic, message_timestamp_before_max_ms=str(hour_ms))
    client = producer(broker.address, compression_type=codec, linger_ms=60_000)
    now, errors = int(time.time() * 1000), {}
    for name, age in (("new", 0), ("old", 2 * hour_ms), ("next", 0), ("older", 3 * hour_ms)):

        def on_delivery(error, message, name=name):
            errors[name] = error.name()

        client.produce(topic, name, timestamp=now - age, on_delivery=on_delivery)
    assert client.flush(30) == 0
    bad = dict.fromkeys(("old", "older"), "INVALID_RECORD")
    assert errors == bad | dict.fromkeys(("new", "next"), "_INVALID_DIFFERENT_RECORD")
