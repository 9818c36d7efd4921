"""Transactions over three nodes: coordinators, leaders and groups on different brokers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.cluster.coordinators import coordinator
from compat_tests.cluster.nodes import REPLICATED, Cluster
from compat_tests.cluster.topics import create
from compat_tests.confluent_kafka.clients import partition_of, value_of
from compat_tests.harness.wait import eventually

PARTITIONS = 6
ATTEMPTS = 5


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    settings = {
        **REPLICATED,
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.num.partitions": "3",
    }
    cluster = make(3, **{name.replace(".", "_"): value for name, value in settings.items()})
    cluster.start()
    return cluster


def producer(cluster: Cluster, name: str) -> Producer:
    client = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    client.init_transactions(60)
    return client


def write_transaction(client: Producer, topic: str, value: str, *, commit: bool) -> None:
    """Write one record to each partition and end the transaction; repeat it if it is aborted."""
    for _ in range(ATTEMPTS):
        client.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                client.produce(topic, value.encode(), partition=partition)
            client.flush(60)
            client.commit_transaction(60) if commit else client.abort_transaction(60)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            client.abort_transaction(60)
        else:
            return
    raise AssertionError(f"{ATTEMPTS} transactions with {value} were aborted")


def read_committed(cluster: Cluster, topic: str, count: int) -> dict[int, list[str]]:
    """Return the values by partition, once there are as many."""
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    values: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}

    def all_read() -> bool:
        for message in client.consume(500, 0.5):
            if message.error() is None:
                values[partition_of(message)].append(value_of(message).decode())
        return sum(map(len, values.values())) >= count

    try:
        client.assign([TopicPartition(topic, partition, 0) for partition in values])
        eventually(all_read, f"records {values}", seconds=60)
        all_read()
    finally:
        client.close()
    return values


@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_transactions_over_leaders_on_all_nodes(cluster: Cluster, name: str) -> None:
    create(cluster, "t", PARTITIONS)
    client = producer(cluster, name)
    for number in range(10):
        write_transaction(client, "t", str(number), commit=number % 3 != 1)
    expected = [str(number) for number in range(10) if number % 3 != 1]
    values = read_committed(cluster, "t", len(expected) * PARTITIONS)
    assert values == dict.fromkeys(range(PARTITIONS), expected)


def test_transactions_go_on_when_their_coordinator_is_killed(cluster: Cluster) -> None:
    create(cluster, "t", PARTITIONS)
    client = producer(cluster, "x")
    numbers = itertools.count()
    expected = []
    for _ in range(2):
        for _ in range(5):
            number = next(numbers)
            write_transaction(client, "t", str(number), commit=number % 2 == 0)
            if number % 2 == 0:
                expected.append(str(number))
        node = coordinator(cluster, "x")
        node.kill()
        number = next(numbers)
        write_transaction(client, "t", str(number), commit=True)
        expected.append(str(number))
        node.launch()
    values = read_committed(cluster, "t", len(expected) * PARTITIONS)
    assert values == dict.fromkeys(range(PARTITIONS), expected)
