"""Apache's Java producer and consumer."""

from __future__ import annotations

import pytest
from kafka.partitioner import murmur2

from compat_tests.kafka_python.clients import create, fill, producer

CLIENTS = "org.apache.kafka.clients"
ASSIGNORS = f"{CLIENTS}.consumer"


@pytest.fixture
def java(jvm, broker):
    return lambda name, topic, *arguments: jvm.scenario(
        "Scenarios", name, broker.address, topic, *arguments
    )


def values(result):
    return [int(record["value"]) for record in result["records"]]


NOT_ACKNOWLEDGED = pytest.mark.single
"""The mark of tests that lose records on several nodes: a leader refuses them before it leads."""


@pytest.mark.parametrize("acks", [pytest.param("0", marks=NOT_ACKNOWLEDGED), "1", "all"])
def test_acks(broker, java, topic, acks):
    create(broker.address, topic)
    settings = [f"acks={acks}", f"enable.idempotence={str(acks == 'all').lower()}"]
    sent = java("produce", topic, "100", "none", *settings)
    assert sent["offsets"] == ([-1] * 100 if acks == "0" else list(range(100)))
    assert values(java("consume", topic, "100")) == list(range(100))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(broker, java, topic, codec):
    create(broker.address, topic)
    java("produce", topic, "500", "key", f"compression.type={codec}", "linger.ms=50")
    records = java("consume", topic, "500")["records"]
    assert [(r["key"], r["value"]) for r in records] == [(f"key-{n}", f"{n}") for n in range(500)]


@pytest.mark.parametrize(("linger", "size"), [(0, 0), (0, 16384), (100, 300), (100, 500_000)])
def test_linger_and_batch_size(broker, java, topic, linger, size):
    create(broker.address, topic)
    sent = java("produce", topic, "1000", "none", f"linger.ms={linger}", f"batch.size={size}")
    assert sent["offsets"] == list(range(1000))
    assert values(java("consume", topic, "1000")) == list(range(1000))


def test_order_with_five_in_flight(broker, java, topic):
    create(broker.address, topic)
    settings = ["linger.ms=0", "batch.size=200", "max.in.flight.requests.per.connection=5"]
    assert java("produce", topic, "3000", "none", *settings)["offsets"] == list(range(3000))
    assert values(java("consume", topic, "3000")) == list(range(3000))


def test_key_hash(broker, java, topic):
    create(broker.address, topic, 7)
    chosen = java("produce", topic, "100", "key")["partitions"]
    assert chosen == [(murmur2(b"key-%d" % n) & 0x7FFFFFFF) % 7 for n in range(100)]


def test_sticky_round_robin_and_custom_partitioner(broker, java, unique):
    sticky, turns, custom = unique("sticky"), unique("turns"), unique("custom")
    for topic in (sticky, turns, custom):
        create(broker.address, topic, 3)
    chosen = java("produce", sticky, "30", "none", "linger.ms=2000")["partitions"]
    assert len(set(chosen)) == 1
    robin = f"partitioner.class={CLIENTS}.producer.RoundRobinPartitioner"
    chosen = java("produce", turns, "30", "none", robin)["partitions"]
    assert set(chosen) == {0, 1, 2}
    chosen = java("produce", custom, "30", "none", "partitioner.class=Scenarios$ByValue")
    assert chosen["partitions"] == [number % 3 for number in range(30)]


def test_nulls_headers_timestamps(broker, java, topic):
    create(broker.address, topic, retention_ms="-1")
    records = java("shapes", topic)["records"]
    pairs = [(None, "v"), ("", "v"), ("k", None), ("k", ""), (None, None), ("", "")]
    assert [(r["key"], r["value"]) for r in records] == pairs
    assert [r["timestamp"] for r in records] == [1000, 1001, 1002, 1003, 1004, 1005]
    headers = [["b", "1"], ["a", ""], ["b", "2"], ["n", None]]
    assert all(record["headers"] == headers for record in records)


def test_too_large(broker, java, topic):
    create(broker.address, topic, max_message_bytes="10000")
    assert java("tooLarge", topic, "50000") == {"error": "RecordTooLargeException", "offset": 0}


def test_positions(broker, java, topic):
    create(broker.address, topic, retention_ms="-1")
    with producer(broker.address) as client:
        for number in range(100):
            client.send(topic, b"%d" % number, timestamp_ms=1_000_000 + number * 1000)
    assert java("positions", topic) == {
        "beginning": 0,
        "end": 100,
        "byTime": [0, 42, 42, None],
        "sought": "99",
        "paused": 0,
        "resumed": "0",
        "reset": "0",
        "lag": True,
    }


@pytest.mark.parametrize(
    ("assignor", "sizes", "keeps"),
    [
        ("RangeAssignor", [2, 4], None),
        ("RoundRobinAssignor", [3, 3], None),
        ("StickyAssignor", [3, 3], True),
        ("CooperativeStickyAssignor", [3, 3], True),
    ],
)
def test_assignors_join_leave_growth(broker, java, unique, group, assignor, sizes, keeps):
    first, second = unique("a"), unique("b")
    for topic in (first, second):
        create(broker.address, topic, 3)
    settings = [f"group.id={group}", f"partition.assignment.strategy={ASSIGNORS}.{assignor}"]
    result = java("group", f"{first},{second}", *map(str, sizes), *settings)
    stable_count = result.pop("kept")
    assert result == {"alone": [6], "both": sizes, "left": [6], "grown": [8]}
    assert keeps is None or stable_count == keeps


@pytest.mark.parametrize(("assignor", "sizes"), [("uniform", [3, 3]), ("range", [2, 4])])
def test_consumer_protocol_assignors_join_leave_growth(
    broker, java, unique, group, assignor, sizes
):
    first, second = unique("a"), unique("b")
    for topic in (first, second):
        create(broker.address, topic, 3)
    settings = [f"group.id={group}", "group.protocol=consumer", f"group.remote.assignor={assignor}"]
    result = java("group", f"{first},{second}", *map(str, sizes), *settings)
    assert result.pop("kept")
    assert result == {"alone": [6], "both": sizes, "left": [6], "grown": [8]}


def test_consumer_protocol_commits(broker, java, topic, group):
    create(broker.address, topic)
    fill(broker.address, topic, [b"%d" % number for number in range(10)])
    assert java("commits", topic, f"group.id={group}", "group.protocol=consumer") == {
        "none": True,
        "sync": [3, "note"],
        "async": ["null"],
        "resumed": "5",
    }


def test_commits(broker, java, topic, group):
    create(broker.address, topic)
    fill(broker.address, topic, [b"%d" % number for number in range(10)])
    assert java("commits", topic, f"group.id={group}") == {
        "none": True,
        "sync": [3, "note"],
        "async": ["null"],
        "resumed": "5",
    }
