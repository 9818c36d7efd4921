"""Partitions with several replicas on three processes: copies, failovers, returning followers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.confluent_kafka.clients import value_of
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import Closed
from kwire.types import CONSUMER_OFFSETS

SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
NODES = (1, 2, 3)


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, **{name.replace(".", "_"): value for name, value in SETTINGS.items()})
    cluster.start()
    return cluster


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Create a topic with three replicas, and wait until all of them are in sync."""
    shape = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[shape(name=topic, num_partitions=partitions, replication_factor=3)],
        timeout_ms=30_000,
    )
    with alive(cluster)[0].client() as client:
        (result,) = client.call(request, 7).topics
    assert result.error_code == 0, result.error_message
    eventually(
        lambda: isr(cluster, topic) == set(NODES), lambda: f"ISR of {topic}: {cluster.tails()}"
    )


def alive(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.brokers if node.alive]


def describe(cluster: Cluster, topic: str, index: int = 0):
    """Return one partition of the Metadata response of a node that serves; None without one."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    for node in alive(cluster):
        try:
            with node.client() as client:
                (answer,) = client.call(request, 12).topics
        except (OSError, Closed):
            continue  # It has just been started.
        return next((p for p in answer.partitions if p.partition_index == index), None)
    return None


def isr(cluster: Cluster, topic: str) -> set[int]:
    partition = describe(cluster, topic)
    return set() if partition is None else set(partition.isr_nodes)


def wait_isr(cluster: Cluster, topic: str, nodes: Iterable[int]) -> None:
    members = set(nodes)
    eventually(
        lambda: isr(cluster, topic) == members, lambda: f"ISR {members}: {cluster.tails()}", 60
    )


def wait_outside_isr(cluster: Cluster, topic: str, node: Node) -> None:
    eventually(lambda: node.id not in isr(cluster, topic), "a smaller ISR")


def leader(cluster: Cluster, topic: str, *, other_than: int = -1) -> Node:
    """Wait for a leader and return its node."""

    def find() -> int | None:
        partition = describe(cluster, topic)
        missing = partition is None or partition.leader_id in (-1, other_than)
        return None if missing else partition.leader_id

    node_id = eventually(find, lambda: f"a leader of {topic}: {cluster.tails()}")
    assert node_id is not None
    return cluster.nodes[node_id]


def producer(cluster: Cluster, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": 60_000,
            **settings,
        }
    )


def produce(client: Producer, topic: str, values: Iterable[int]) -> list[int]:
    """Produce numbers; return those that were acknowledged, in order."""
    acknowledged: list[int] = []

    def on_delivery(error: object, message) -> None:
        if error is None:
            acknowledged.append(int(message.value()))

    for value in values:
        client.produce(topic, b"%d" % value, on_delivery=on_delivery)
        client.poll(0)
    client.flush(60)
    return acknowledged


def read(cluster: Cluster, topic: str, count: int, index: int = 0) -> list[int]:
    """Read the first ``count`` records of a partition."""
    client = Consumer(
        {
            "bootstrap.servers": ",".join(node.address for node in alive(cluster)),
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    values: list[int] = []
    try:
        client.assign([TopicPartition(topic, index, 0)])
        deadline = time.monotonic() + 60
        while len(values) < count and time.monotonic() < deadline:
            values += [int(value_of(m)) for m in client.consume(1000, 1.0) if m.error() is None]
    finally:
        client.close()
    return values


def segments(node: Node, topic: str, index: int = 0) -> bytes:
    """Return the contents of all segments of a partition on a node."""
    folder: Path = node.directory / "data" / f"{topic}-{index}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def is_equal_everywhere(cluster: Cluster, topic: str) -> bool:
    """Whether all living nodes have the same bytes, without what Apache Kafka preallocates."""
    contents = {segments(node, topic).rstrip(b"\0") for node in alive(cluster)}
    return len(contents) == 1


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
    eventually(
        lambda: follower.id in isr(cluster, "t"), lambda: f"a larger ISR: {cluster.tails()}", 60
    )
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
    eventually(
        lambda: isr(cluster, "t") == set(NODES), lambda: f"the whole ISR: {cluster.tails()}", 60
    )
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
    eventually(
        lambda: isr(cluster, "t") == set(NODES), lambda: f"the whole ISR: {cluster.tails()}", 60
    )
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
            committed = reader.committed([TopicPartition("t", 0)], timeout=60)
        finally:
            reader.close()
        assert committed[0].offset == 100
        node.launch()
        eventually(
            lambda: isr(cluster, "t") == set(NODES), lambda: f"the ISR: {cluster.tails()}", 60
        )
        eventually(lambda: isr(cluster, CONSUMER_OFFSETS) == set(NODES), "the groups' ISR", 60)
