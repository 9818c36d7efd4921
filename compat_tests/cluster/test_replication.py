"""Partitions with several replicas on three processes: copies, failovers, returning followers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from compat_tests.cluster.nodes import REPLICATED, Cluster, Node
from compat_tests.cluster.topics import (
    NODES,
    create,
    isr,
    leader,
    produce,
    producer,
    read,
    segments,
    wait_isr,
)
from compat_tests.confluent_kafka.clients import value_of
from compat_tests.harness.wait import eventually
from kwire.types import CONSUMER_OFFSETS


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, **{name.replace(".", "_"): value for name, value in REPLICATED.items()})
    cluster.start()
    return cluster


def wait_outside_isr(cluster: Cluster, topic: str, node: Node) -> None:
    eventually(lambda: node.id not in isr(cluster, topic), "a smaller ISR")


def is_equal_everywhere(cluster: Cluster, topic: str) -> bool:
    """Whether all living nodes have the same bytes, without what Apache Kafka preallocates."""
    contents = {segments(node, topic) for node in cluster.living}
    return len(contents) == 1


def committed_offset(kind: str, client: Any, topic: str) -> int | None:
    """Return a group's offset of partition 0; None while Apache Kafka's coordinator moves."""
    try:
        (place,) = client.committed([TopicPartition(topic, 0)], timeout=60)
    except KafkaException as error:
        if kind != "kafka" or error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return None
    return int(place.offset)


def test_acknowledged_records_are_on_all_replicas(cluster: Cluster) -> None:
    create(cluster, "t")
    values = range(2000)
    assert produce(producer(cluster), "t", values) == list(values)
    assert read(cluster, "t", 2000) == list(values)
    eventually(lambda: is_equal_everywhere(cluster, "t"), "equal replicas")
    assert len(segments(cluster.nodes[1], "t")) > 2000


def test_records_survive_the_death_of_their_leader(cluster: Cluster) -> None:
    create(cluster, "t")
    client = producer(cluster)
    assert produce(client, "t", range(1000)) == list(range(1000))
    former = leader(cluster, "t")
    former.kill()
    leader(cluster, "t", other_than=former.id)
    assert produce(client, "t", range(1000, 2000)) == list(range(1000, 2000))
    assert read(cluster, "t", 2000) == list(range(2000))


def test_follower_that_returns_copies_what_it_missed_and_joins(cluster: Cluster) -> None:
    create(cluster, "t")
    client = producer(cluster)
    produce(client, "t", range(500))
    follower = next(n for n in cluster.brokers if n.id != leader(cluster, "t").id)
    follower.kill()
    eventually(lambda: follower.id not in isr(cluster, "t"), "a smaller ISR")
    assert produce(client, "t", range(500, 1500)) == list(range(500, 1500))
    follower.launch()
    eventually(lambda: follower.id in isr(cluster, "t"), lambda: f"a larger ISR: {cluster.tails()}")
    eventually(lambda: is_equal_everywhere(cluster, "t"), "equal replicas")
    assert read(cluster, "t", 1500) == list(range(1500))


def test_producer_waits_for_enough_replicas(cluster: Cluster) -> None:
    """Below min.insync.replicas acks=all is refused, and works again when a replica returns."""
    create(cluster, "t")
    first = leader(cluster, "t")
    others = [node for node in cluster.brokers if node.id != first.id]
    # One node of three is left to lead; the quorum needs two, so pause no controller majority.
    others[0].kill()
    eventually(lambda: others[0].id not in isr(cluster, "t"), "a smaller ISR")
    client = producer(cluster)
    assert produce(client, "t", range(100)) == list(range(100))
    others[0].launch()
    wait_isr(cluster, "t", NODES)
    assert produce(client, "t", range(100, 200)) == list(range(100, 200))
    assert read(cluster, "t", 200) == list(range(200))


def test_nothing_is_lost_when_all_nodes_are_killed(cluster: Cluster) -> None:
    create(cluster, "t")
    acknowledged = produce(producer(cluster), "t", range(1000))
    for node in cluster.brokers:
        node.kill()
    for node in cluster.brokers:
        node.launch()
    cluster.wait_complete()
    leader(cluster, "t")
    assert read(cluster, "t", 1000) == acknowledged == list(range(1000))
    wait_isr(cluster, "t", NODES)
    eventually(lambda: is_equal_everywhere(cluster, "t"), "equal replicas")


def test_groups_move_with_their_coordinator(cluster: Cluster) -> None:
    """Committed offsets are known after the death of the group's coordinator."""
    create(cluster, "t")
    produce(producer(cluster), "t", range(100))
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    client = Consumer(settings)
    client.subscribe(["t"])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < 100 and time.monotonic() < deadline:
        values += [int(value_of(m)) for m in client.consume(100, 1.0) if m.error() is None]
    client.commit(asynchronous=False)
    client.close()
    for node in cluster.brokers:
        others = [other for other in cluster.brokers if other is not node]
        node.kill()
        wait_outside_isr(cluster, "t", node)
        reader = Consumer(
            {**settings, "bootstrap.servers": ",".join(other.address for other in others)}
        )
        try:
            committed = eventually(
                partial(committed_offset, node.kind, reader, "t"), "a coordinator knows the offset"
            )
        finally:
            reader.close()
        assert committed == 100
        node.launch()
        wait_isr(cluster, "t", NODES)
        for index in range(3):  # The group's own partition is one of them.
            wait_isr(cluster, CONSUMER_OFFSETS, NODES, index)
