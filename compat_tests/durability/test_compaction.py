"""Compaction by a running broker: the disk shrinks, and readers find the last value of each key."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from compat_tests.confluent_kafka.clients import consumer, create, deliver, is_end, producer
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually

SEGMENT_BYTES = 20_000
KEYS = 20
UPDATES = 4_000


BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4000000",
    "log.segment.delete.delay.ms": "100",
}
"""The broker looks for dirty logs five times a second."""


def test_new_reader_finds_the_last_values_before_and_after_a_kill(
    own_broker: Broker, topic: str, unique: partial[str]
) -> None:
    broker = own_broker
    create(
        broker.address,
        topic,
        cleanup_policy="compact",
        internal_segment_bytes=str(SEGMENT_BYTES),
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
        file_delete_delay_ms="100",
    )
    table = update(broker, topic, UPDATES)
    written = UPDATES * 100
    eventually(lambda: size(broker, topic) < written / 4, lambda: f"{size(broker, topic)} bytes")
    assert read(broker, topic, unique("group")) == table
    broker.kill()
    broker.start()
    assert read(broker, topic, unique("group")) == table
    table |= update(broker, topic, UPDATES // 2, deleted=b"key-1")
    del table[b"key-1"]
    eventually(lambda: size(broker, topic) < written / 4, lambda: f"{size(broker, topic)} bytes")
    broker.kill()
    broker.start()
    assert read(broker, topic, unique("group")) == table
    eventually(lambda: not left_over(broker, topic), lambda: f"{left_over(broker, topic)}")


def update(broker: Broker, topic: str, count: int, deleted: bytes = b"key-0") -> dict[bytes, bytes]:
    """Write values of a hundred bytes for a few keys, then delete one; return the last values."""
    table: dict[bytes, bytes] = {}
    messages: list[dict[str, object]] = []
    for number in range(count):
        key, value = b"key-%d" % (number % KEYS), b"%08d" % number * 12
        table[key] = value
        messages.append({"topic": topic, "key": key, "value": value})
    messages.append({"topic": topic, "key": deleted, "value": None})
    # The next ones close the segment that holds the others.
    for number in range(2 * SEGMENT_BYTES // 1_000):
        value = b"%08d" % number * 125
        table[b"filler"] = value
        messages.append({"topic": topic, "key": b"filler", "value": value})
    deliver(producer(broker.address, acks="all", batch_num_messages=5), messages)
    table.pop(deleted, None)
    return table


def read(broker: Broker, topic: str, group: str) -> dict[bytes, bytes]:
    """Return the last value of each key, as a new consumer finds it."""
    table: dict[bytes, bytes] = {}
    with consumer(broker.address, group, enable_partition_eof=True) as reader:
        reader.subscribe([topic])

        def is_read() -> bool:
            for message in reader.consume(500, 0.2):
                if is_end(message):
                    return True
                assert message.error() is None, message.error()
                table.pop(message.key(), None)
                if message.value() is not None:
                    table[message.key()] = message.value()
            return False

        eventually(is_read, "the end of the partition")
    return table


def folder(broker: Broker, topic: str) -> Path:
    return broker.data / f"{topic}-0"


def left_over(broker: Broker, topic: str) -> list[str]:
    """Return the files that a pass has not put in place, or has replaced."""
    suffixes = (".cleaned", ".swap", ".deleted")
    files = [path.name for path in folder(broker, topic).iterdir()]
    return [name for name in files if name.endswith(suffixes)]


def size(broker: Broker, topic: str) -> int:
    """Return the bytes of the topic's log files."""
    total = 0
    for path in folder(broker, topic).glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # It was replaced meanwhile.
            continue
    return total
