"""Compaction as clients of a running broker see it: what a consumer reads after a pass.

Segments are closed by the records' timestamps, so that each pass cleans exactly what was written
before, and the offsets that must be left are known. The consumer is librdkafka's, so these tests
stand for its other users too; kcat is asked as well where it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from compat_tests.confluent_kafka.clients import (
    consumer,
    create,
    deliver,
    is_end,
    partition_of,
    producer,
)
from compat_tests.harness.broker import Broker
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.interchange.node import complaints, hand_over
from compat_tests.kafka_python.clients import admin

pytestmark = pytest.mark.single
DUMP = "org.apache.kafka.tools.DumpLogSegments"
SEGMENT_MS = 5_000
PASS_S = 3.0
"""Longer than a broker takes to clean a small log; where it does not, a test is only weaker."""
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": "4000000"}
Read = tuple[int, bytes | None, bytes | None]


class Topic:
    """A compacted topic of one partition, whose segments are closed on demand."""

    def __init__(self, address: str, name: str, **settings: str) -> None:
        self.address, self.name = address, name
        self.time_ms = int(time.time() * 1000)
        configs = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0.01",
            "segment_ms": str(SEGMENT_MS),
            **settings,
        }
        create(address, name, 1, 1, **configs)

    def write(self, keys: list[tuple[str, str | None]], codec: str = "none") -> list[Read]:
        """Write records of the same time; return them with their offsets."""
        client = producer(
            self.address, compression_type=codec, linger_ms=5, enable_idempotence=True
        )
        messages: list[dict[str, Any]] = [
            {"topic": self.name, "key": key, "value": value, "timestamp": self.time_ms}
            for key, value in keys
        ]
        return [(m.offset(), m.key(), m.value()) for m in deliver(client, messages)]

    def close_segment(self) -> list[Read]:
        """Write a record of a later time, which goes to a new segment."""
        self.time_ms += 2 * SEGMENT_MS
        return self.write([(f"end {self.time_ms}", "x")])

    def read(self, **settings: str) -> list[Read]:
        """Return what a new consumer reads from the beginning."""
        records: list[Read] = []
        with consumer(self.address, "reader", enable_partition_eof=True, **settings) as client:
            client.assign([TopicPartition(self.name, 0, 0)])
            while True:
                for message in client.consume(500, 0.2):
                    if is_end(message):
                        return records
                    assert message.error() is None, message.error()
                    assert partition_of(message) == 0
                    records.append((message.offset(), message.key(), message.value()))

    def wait_cleaned(self, expected: list[Read], **settings: str) -> None:
        eventually(lambda: self.read(**settings) == expected, lambda: f"{self.read(**settings)}")


def last_of_each_key(records: list[Read]) -> list[Read]:
    return sorted({key: (offset, key, value) for offset, key, value in records}.values())


@pytest.mark.parametrize(
    "codec",
    [
        "none",
        "zstd",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("gzip", "lz4", "snappy")),
    ],
)
def test_consumer_reads_the_last_record_of_each_key(
    own_broker: Broker, jvm: Jvm, codec: str
) -> None:
    topic = Topic(own_broker.address, "compacted")
    records = topic.write([(f"key-{n % 7}", f"value-{n}" * 20) for n in range(500)], codec)
    records += topic.write([("key-3", None)], codec)
    records += topic.close_segment()
    topic.wait_cleaned(last_of_each_key(records))
    records += topic.write([(f"key-{n % 3}", f"later-{n}") for n in range(30)], codec)
    records += topic.close_segment()
    topic.wait_cleaned(last_of_each_key(records))
    own_broker.stop()
    files = [p for p in (own_broker.data / "compacted-0").glob("*.log") if p.stat().st_size]
    ran = jvm.tool(DUMP, "--deep-iteration", "--files", ",".join(map(str, files)))
    printed = ran.ok() + ran.err
    assert "isvalid: true" in printed
    for complaint in ("isvalid: false", "ismatch", "Exception"):
        assert complaint not in printed
    own_broker.restart()
    topic.wait_cleaned(last_of_each_key(records))


def set_rate(broker: Broker, rate: int, *, at_start: bool) -> None:
    """Set the bytes that the cleaner may read and write each second."""
    name = "log.cleaner.io.max.bytes.per.second"
    if at_start:
        broker.kill()
        properties = broker.directory / "server.properties"
        properties.write_text(f"{properties.read_text()}\n{name}={rate}\n")
        broker.start()
        return
    with admin(broker.address) as client:
        client.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {name: str(rate)})])


@pytest.mark.parametrize("at_start", [False, True])
def test_negative_rate_is_no_limit(own_broker: Broker, at_start: bool) -> None:
    set_rate(own_broker, -1, at_start=at_start)
    topic = Topic(own_broker.address, "compacted")
    records = topic.write([("key", f"value-{n}") for n in range(100)])
    records += topic.close_segment()
    topic.wait_cleaned(last_of_each_key(records))


@pytest.mark.parametrize("at_start", [False, True])
def test_rate_of_zero_stops_compaction(own_broker: Broker, at_start: bool) -> None:
    """Apache's cleaner then also ignores other rates and SIGTERM, so the node is killed."""
    set_rate(own_broker, 0, at_start=at_start)
    topic = Topic(own_broker.address, "compacted")
    records = topic.write([("key", f"value-{n}") for n in range(100)])
    records += topic.close_segment()
    time.sleep(PASS_S)
    assert topic.read() == records
    set_rate(own_broker, -1, at_start=at_start)
    own_broker.kill()
    own_broker.start()
    topic.wait_cleaned(last_of_each_key(records))


def kcat_reads(topic: Topic) -> list[tuple[int, str]]:
    """Return offset and key of each record that kcat prints."""
    kcat = ["kcat", "-C", "-e", "-q", "-b", topic.address, "-t", topic.name, "-p", "0"]
    done = subprocess.run(
        [*kcat, "-o", "beginning", "-f", "%o %k\\n"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    pairs = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [(int(offset), key) for offset, key in pairs]


@pytest.mark.long
@pytest.mark.with_apache
def test_other_broker_serves_and_cleans_what_was_cleaned(own_broker: Broker) -> None:
    """kwire's log is opened by Apache Kafka, cleaned on, and opened by kwire again; or reversed."""
    topic = Topic(own_broker.address, "compacted", delete_retention_ms="86400000")
    records: list[Read] = []
    first = own_broker.kind
    other = {"kwire": "kafka", "kafka": "kwire"}[first]
    for number, kind in enumerate((first, other, first)):
        if kind != own_broker.kind:
            own_broker.stop()
            hand_over(own_broker, kind)
            assert topic.read() == last_of_each_key(records)
        for codec in ("none", "lz4"):
            records += topic.write(
                [(f"key-{n % (7 + number)}", f"{codec} {number} {n}" * 9) for n in range(300)],
                codec,
            )
        records += topic.write([(f"key-{number}", None)])
        records += topic.close_segment()
        topic.wait_cleaned(last_of_each_key(records))
        if shutil.which("kcat") is not None:
            expected = [(offset, (key or b"").decode()) for offset, key, _ in topic.read()]
            assert kcat_reads(topic) == expected
        if kind == "kafka":
            assert complaints(own_broker) == []


def test_tombstone_goes_after_its_retention(own_broker: Broker) -> None:
    topic = Topic(own_broker.address, "tombstones", delete_retention_ms="1")
    records = topic.write([("a", "1"), ("b", "2"), ("a", None)])
    records += topic.close_segment()
    topic.wait_cleaned(last_of_each_key(records))
    assert [key for _, key, value in topic.read() if value is None] == [b"a"]
    records += topic.close_segment()
    remaining = [record for record in last_of_each_key(records) if record[2] is not None]
    topic.wait_cleaned(remaining)


def test_aborted_records_do_not_replace_committed_ones(own_broker: Broker) -> None:
    topic = Topic(own_broker.address, "transactions")
    records = topic.write([("a", "plain"), ("b", "plain")])
    client = producer(topic.address, transactional_id="compacting")
    client.init_transactions(30)
    for key, does_commit in (("a", False), ("b", True), ("b", False)):
        client.begin_transaction()
        message = {"topic": topic.name, "key": key, "value": "in transaction"}
        done = deliver(client, [{**message, "timestamp": topic.time_ms}])
        if does_commit:
            client.commit_transaction(30)
            records += [(m.offset(), m.key(), m.value()) for m in done]
        else:
            client.abort_transaction(30)
    records += topic.close_segment()
    topic.wait_cleaned(last_of_each_key(records), isolation_level="read_committed")
    # The last batch of an active producer stays, but without its aborted record.
    topic.wait_cleaned(last_of_each_key(records), isolation_level="read_uncommitted")
