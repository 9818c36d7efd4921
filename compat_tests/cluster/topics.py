"""Topics of a cluster: their creation, their replicas in the metadata, and their records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.confluent_kafka.clients import value_of
from compat_tests.harness.wait import DEADLINE_SECONDS, eventually
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.metadata_records import TopicRecord
from kwire.raftmeta.storage.records import read_batches
from kwire.testing.wire import Closed

NODES = (1, 2, 3)
ASSIGNED_SECONDS = 180
"""Deadline for the replicas of a new topic on a machine that may be busy with other nodes."""


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Create a topic with three replicas, and wait until all of them are in sync."""
    shape = CreateTopicsRequest.CreatableTopic
    _create(cluster, shape(name=topic, num_partitions=partitions, replication_factor=3))
    wait_isr(cluster, topic, NODES)


def create_on(
    cluster: Cluster, topic: str, assignments: Sequence[Sequence[int]], **configs: str
) -> None:
    """Create a topic with these replicas of each partition, and wait until all are in sync.

    The names of ``configs`` have underscores instead of dots.
    """
    shape = CreateTopicsRequest.CreatableTopic
    creatable = shape(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            shape.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
            for index, nodes in enumerate(assignments)
        ],
        configs=[
            shape.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    _create(cluster, creatable)
    for index, nodes in enumerate(assignments):
        wait_isr(cluster, topic, nodes, index, ASSIGNED_SECONDS)


def _create(cluster: Cluster, topic: CreateTopicsRequest.CreatableTopic) -> None:
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    with cluster.living[0].client() as client:
        (result,) = client.call(request, 7).topics
    assert result.error_code == 0, result.error_message
    wait_known(cluster, topic.name)


def wait_known(cluster: Cluster, *topics: str) -> None:
    """Wait until every living broker has these topics in its metadata.

    A tool may ask any broker, and fails at one that has not learned of the topic yet.
    """

    def has_topics(node: Node) -> bool:
        try:
            return set(topics) <= topics_at(node).keys()
        except (OSError, Closed):
            return False  # It has just been started.

    eventually(
        lambda: all(has_topics(node) for node in cluster.living),
        lambda: f"all nodes have {topics}: {cluster.tails()}",
    )


def creation(*names: str, partitions: int = 3) -> CreateTopicsRequest:
    """Return a request for topics with one replica of each partition."""
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=n, num_partitions=partitions, replication_factor=1) for n in names],
        timeout_ms=30_000,
    )


def describe(cluster: Cluster, topic: str, index: int = 0):
    """Return one partition of the Metadata response of a node that serves; None without one."""
    for node in cluster.living:
        try:
            return describe_at(node, topic, index)
        except (OSError, Closed):
            continue  # It has just been started.
    return None


def describe_at(node: Node, topic: str, index: int = 0):
    """Return one partition of a node's Metadata response; None if the node does not know it."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    with node.client() as client:
        (answer,) = client.call(request, 12).topics
    return next((p for p in answer.partitions if p.partition_index == index), None)


def isr(cluster: Cluster, topic: str, index: int = 0) -> set[int]:
    """Return the in-sync replicas; the empty set if no broker has the partition."""
    partition = describe(cluster, topic, index)
    return set() if partition is None else set(partition.isr_nodes)


def wait_isr(
    cluster: Cluster,
    topic: str,
    nodes: Iterable[int],
    index: int = 0,
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """Wait until exactly these nodes are in sync."""
    members = set(nodes)

    def failure() -> str:
        actual = isr(cluster, topic, index)
        return f"ISR of {topic}-{index} is {members}, not {actual}: {cluster.tails()}"

    eventually(lambda: isr(cluster, topic, index) == members, failure, seconds)


def leader(cluster: Cluster, topic: str, *, other_than: int = -1) -> Node:
    """Wait for a leader and return its node."""

    def find() -> int | None:
        partition = describe(cluster, topic)
        missing = partition is None or partition.leader_id in (-1, other_than)
        return None if missing else partition.leader_id

    node_id = eventually(find, lambda: f"a leader of {topic}: {cluster.tails()}")
    assert node_id is not None
    return cluster.nodes[node_id]


def wait_leaderless(cluster: Cluster, topic: str, members: Iterable[int]) -> None:
    """Wait until the first partition has no leader, and exactly these nodes in its ISR.

    A node that has just been started may not know the partition yet.
    """

    def has_no_leader() -> bool:
        partition = describe(cluster, topic)
        return (
            partition is not None
            and partition.leader_id == -1
            and set(partition.isr_nodes) == set(members)
        )

    eventually(has_no_leader, lambda: f"{topic} has no leader: {cluster.tails()}")


def leader_of(cluster: Cluster, topic: str, index: int = 0) -> int:
    """Return the id of the leader in the metadata at this moment; -1 without one."""
    partition = describe(cluster, topic, index)
    return -1 if partition is None else partition.leader_id


def producer(cluster: Cluster, **settings: object) -> Producer:
    """Return an idempotent producer."""
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
            "bootstrap.servers": ",".join(node.address for node in cluster.living),
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    values: list[int] = []
    try:
        client.assign([TopicPartition(topic, index, 0)])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(values) < count and time.monotonic() < deadline:
            values += [int(value_of(m)) for m in client.consume(1000, 1.0) if m.error() is None]
    finally:
        client.close()
    return values


def segments(node: Node, topic: str, index: int = 0) -> bytes:
    """Return the contents of a partition's segments, without what Apache Kafka preallocates."""
    folder = node.replica(topic, index)
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))).rstrip(b"\0")


def topics_at(node: Node) -> dict[str, int]:
    """Return the partition count of each topic in a node's metadata."""
    with node.client() as client:
        answer = client.call(MetadataRequest(topics=None), 12)
    return {str(topic.name): len(topic.partitions) for topic in answer.topics}


def wait_topics(node: Node, topics: dict[str, int]) -> None:
    """Wait until a node's metadata has these partition counts of these topics."""
    eventually(lambda: topics_at(node) == topics, f"node {node.id} has {topics}")


def created_in_log(node: Node) -> Counter[str]:
    """Count the TopicRecords of each topic in a node's metadata log."""
    counter: Counter[str] = Counter()
    folder = node.directory / "data" / "__cluster_metadata-0"
    for segment in sorted(folder.glob("*.log")):
        for batch in read_batches(memoryview(segment.read_bytes())):
            counter.update(r.name for r in batch.records if isinstance(r, TopicRecord))
    return counter
