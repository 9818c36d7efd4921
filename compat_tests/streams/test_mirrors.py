"""MirrorMaker 2 copies topics between kwire and Apache Kafka, both ways at once.

Each record of one cluster is in the other one once and in order, although MirrorMaker is killed
and the brokers restart.  A consumer group that moves to the other cluster continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    is_end,
    producer,
    value_of,
)
from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.wait import eventually
from compat_tests.streams.mirrors import Mirror

pytestmark = [pytest.mark.single, pytest.mark.long, pytest.mark.with_apache]
SECONDS = 300
"""The time for a process to start and copy: its JVM compiles for a long time on a busy machine."""
PARTITIONS = 2
ROUNDS, RECORDS = 2, 200
RETENTION = "7200000"
OTHER = {"here": "there", "there": "here"}


@pytest.fixture
def clusters(broker_kind: str, tmp_path: Path) -> Iterator[dict[str, Broker]]:
    """The broker under test, ``here``, and one of Apache Kafka, ``there``."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    here = make_broker(broker_kind, tmp_path / "here", settings)
    try:
        there = make_broker("kafka", tmp_path / "there", settings)
        yield {"here": here, "there": there}
        there.close()
    finally:
        here.close()


def values(broker: Broker, topic: str) -> list[list[bytes]]:
    """Return the committed records of each partition; nothing while there is no such topic."""
    if topic not in admin(broker.address).list_topics(timeout=30).topics:
        return []
    records: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    settings = {"isolation_level": "read_committed", "enable_partition_eof": True}
    with consumer(broker.address, "no-group", **settings) as client:
        client.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ends: set[int] = set()
        while len(ends) < PARTITIONS:
            for message in client.consume(500, 0.2):
                if is_end(message):
                    ends.add(message.partition())
                    continue
                assert message.error() is None, message.error()
                records[message.partition()].append(value_of(message))
    return records


def write(broker: Broker, alias: str, written: list[list[bytes]]) -> None:
    """Append records to each partition of ``orders``."""
    messages = []
    for number, partition in enumerate(written):
        more = [f"{alias}-{len(partition) + index}".encode() for index in range(RECORDS)]
        messages += [{"topic": "orders", "partition": number, "value": value} for value in more]
        partition += more
    deliver(producer(broker.address, enable_idempotence=True), messages)


def commit_end(broker: Broker, group: str, written: list[list[bytes]]) -> None:
    """Commit the offsets of a group that has read everything."""
    with consumer(broker.address, group) as client:
        places = [TopicPartition("orders", number, len(x)) for number, x in enumerate(written)]
        client.commit(offsets=places, asynchronous=False)


def unread(broker: Broker, group: str, topic: str) -> list[bytes]:
    """Return the record at which a group continues in each partition, b"" at its end.

    The offsets do not tell, because the markers of transactions have some as well.
    """
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with consumer(broker.address, group) as client:
        committed = client.committed(places, timeout=30)
    if any(place.offset < 0 for place in committed):
        return []
    return [read_at(broker, place) for place in committed]


def read_at(broker: Broker, place: TopicPartition) -> bytes:
    """Return the first record from ``place`` onwards, or nothing at the end."""
    settings = {"isolation_level": "read_committed", "enable_partition_eof": True}
    with consumer(broker.address, "no-group", **settings) as client:
        client.assign([place])
        message = eventually(lambda: client.poll(0.2), f"{place}")
    return b"" if is_end(message) else value_of(message)


def retention(broker: Broker, topic: str) -> str:
    resource = ConfigResource("topic", topic)
    client = admin(broker.address)
    return str(client.describe_configs([resource])[resource].result(30)["retention.ms"].value)


def test_records_and_group_offsets_are_mirrored_both_ways_through_a_kill_and_restarts(
    clusters: dict[str, Broker], tmp_path: Path
) -> None:
    addresses = {alias: broker.address for alias, broker in clusters.items()}
    mirror = Mirror(addresses, "orders", tmp_path / "mirror")
    written: dict[str, list[list[bytes]]] = {}
    for alias, broker in clusters.items():
        create(broker.address, "orders", PARTITIONS, retention_ms=RETENTION)
        # A new topic stops MirrorMaker's tasks, and a task that is stopped while it copies does not
        # say where the copies are: their groups' offsets are mirrored only after further records.
        create(broker.address, "heartbeats", 1)
        written[alias] = [[] for _ in range(PARTITIONS)]

    def wait_copies(alias: str) -> None:
        copies = f"{alias}.orders"
        eventually(
            lambda: values(clusters[OTHER[alias]], copies) == written[alias],
            lambda: f"{copies}: {values(clusters[OTHER[alias]], copies)} {mirror.tail()}",
            SECONDS,
        )

    def wait_unread(alias: str, index: int | None) -> None:
        """Wait until the group of a topic continues at this record of its copies, or the end."""
        place = (clusters[OTHER[alias]], f"readers-{alias}", f"{alias}.orders")
        expected = [b"" if index is None else records[index] for records in written[alias]]
        eventually(
            lambda: unread(*place) == expected, lambda: f"{unread(*place)}, not {expected}", SECONDS
        )

    for number in range(ROUNDS):
        for alias, broker in clusters.items():
            write(broker, alias, written[alias])
        with mirror.running():
            for alias, broker in clusters.items():
                wait_copies(alias)
                if number > 0:
                    wait_unread(alias, number * RECORDS)
                commit_end(broker, f"readers-{alias}", written[alias])
            for alias in clusters:
                wait_unread(alias, None)
        for broker in clusters.values():
            broker.restart()
    for alias in clusters:
        wait_copies(alias)
        other = clusters[OTHER[alias]]
        assert retention(other, f"{alias}.orders") == RETENTION
        topics = admin(other.address).list_topics(timeout=30).topics
        assert f"{alias}.{OTHER[alias]}.orders" not in topics, "a copy was copied back"
        assert f"{alias}.heartbeats" in topics
        assert f"{alias}.checkpoints.internal" in topics
