"""A broker with a full volume: it refuses records, serves all else, and recovers by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from compat_tests.confluent_kafka.clients import admin, consumer, create, poll, producer
from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.volume import small_volume
from compat_tests.harness.wait import eventually

MEGABYTES = 64
VALUE_BYTES = 20_000
PARTITIONS = 2
REFUSALS = {KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT}

Acknowledged = dict[tuple[str, int, int], bytes]
"""Acknowledged values by topic, partition and offset."""


@pytest.fixture
def full_broker(broker_kind: str, tmp_path: Path) -> Iterator[Broker]:
    if broker_kind == "kafka":
        pytest.skip("takes the directory offline: docs/differences.md")
    directory = tmp_path / "broker"
    with small_volume(directory / "data", MEGABYTES) as prefix:
        settings = {"log.segment.delete.delay.ms": "100"}
        broker = make_broker(broker_kind, directory, settings, prefix)
        try:
            yield broker
        finally:
            broker.close()


def test_full_disk_refuses_records_only_and_works_again_after_a_deletion(full_broker, topic):
    """A broker recovers from a full disk without a restart, and starts on one (invariant 88)."""
    address = full_broker.address
    small, bulk = f"{topic}-kept", f"{topic}-bulk"
    for name in (small, bulk):
        create(address, name, PARTITIONS, segment_bytes="4194304")
    acknowledged: Acknowledged = {}
    fill(address, (small, bulk), acknowledged)
    assert sum(map(len, acknowledged.values())) > MEGABYTES * 1_000_000 / 3
    assert read_all(address, small, acknowledged) > 100
    assert read_all(address, bulk, acknowledged) > 100
    refused = send_one(address, small)
    assert refused.error() is not None
    assert refused.error().code() in REFUSALS

    delete(address, bulk)
    acknowledged = {place: value for place, value in acknowledged.items() if place[0] == small}
    again = eventually(lambda: send_accepted(address, small), "records are accepted again")
    acknowledged[again.topic(), again.partition(), again.offset()] = again.value()

    fill(address, (small,), acknowledged)
    full_broker.kill()
    full_broker.start()
    assert read_all(address, small, acknowledged) > 200
    # What the killed process had allocated ahead may be room for a few records.
    fill(address, (small,), acknowledged)
    assert read_all(address, small, acknowledged) > 200
    assert bulk not in admin(address).list_topics(timeout=10).topics

    delete(address, small)
    create(address, bulk, PARTITIONS)
    eventually(lambda: send_accepted(address, bulk), "records are accepted again")
    lines = (full_broker.directory / "server.log").read_text().splitlines()
    events = [line for line in lines if "room for records" in line]
    states = ["again" if "room for records again" in line else "full" for line in events]
    assert states == ["full", "again", "full", "full", "again"], (
        "it is logged once more after the start"
    )
    assert not [line for line in lines if "directory offline" in line]


def delete(address: str, topic: str) -> None:
    client = admin(address)  # Kept until the answer.
    client.delete_topics([topic])[topic].result(30)


def fill(address: str, topics: tuple[str, ...], acknowledged: Acknowledged) -> None:
    """Send until the broker refuses a record; add the acknowledged ones to ``acknowledged``."""
    refused: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is None:
            place = message.topic(), message.partition(), message.offset()
            assert acknowledged.setdefault(place, message.value()) == message.value()
        else:
            refused.append(error)

    client = impatient(address)
    number = 0
    while not refused:
        topic = topics[number % len(topics)]
        partition = number // len(topics) % PARTITIONS
        client.produce(topic, os.urandom(VALUE_BYTES), partition=partition, on_delivery=on_delivery)
        number += 1
        client.poll(0 if len(client) < 100 else 0.05)
        assert number * VALUE_BYTES < 3 * MEGABYTES * 1_000_000, "the volume is never full"
    assert client.flush(60) == 0
    assert {error.code() for error in refused} <= REFUSALS


def impatient(address: str) -> Any:
    return producer(
        address,
        acks="all",
        linger_ms=2,
        message_send_max_retries=2,
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
        message_timeout_ms=10_000,
    )


def send_one(address: str, topic: str) -> Any:
    """Send a record; return the message, with its error if any."""
    reports: list[Any] = []
    client = impatient(address)
    client.produce(topic, os.urandom(1000), partition=0, on_delivery=lambda e, m: reports.append(m))
    assert client.flush(60) == 0
    (report,) = reports
    return report


def send_accepted(address: str, topic: str) -> Any:
    """Send a record and return it, or None if it was refused."""
    report = send_one(address, topic)
    return report if report.error() is None else None


def read_all(address: str, topic: str, acknowledged: Acknowledged) -> int:
    """Check that every acknowledged record of a topic is at its offset."""
    expected = {place: value for place, value in acknowledged.items() if place[0] == topic}
    stored: Acknowledged = {}

    def is_complete() -> bool:
        for message in poll(reader):
            stored[message.topic(), message.partition(), message.offset()] = message.value()
        return expected.keys() <= stored.keys()

    with consumer(address, "no-group") as reader:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        eventually(is_complete, "all acknowledged records are read")
    assert {place: stored[place] for place in expected} == expected
    return len(expected)
