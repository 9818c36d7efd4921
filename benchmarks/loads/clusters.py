"""Loads of three nodes: what one of them has to do when others lead."""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.loads.one_broker import Load
from benchmarks.loads.scene import Scene
from compat_tests.cluster.nodes import BROKER, COMBINED, Cluster, Node
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse

SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
}
CONTROLLER, FIRST, SECOND = 1, 2, 3
BATCHES: Final = 30_000
HEAP: Final = "1g"
TOPICS: Final = 30
PARTITIONS: Final = 100
DEADLINE_SECONDS: Final = 300.0

Partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition


@contextmanager
def _cluster(kind: str) -> Iterator[Cluster]:
    """Start a node that is controller and broker, and two brokers."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), SETTINGS)
        for node_id in (CONTROLLER, FIRST, SECOND):
            roles = COMBINED if node_id == CONTROLLER else BROKER
            cluster.add(node_id, kind, roles).heap = HEAP
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@contextmanager
def truncation_of_30000_batches(kind: str) -> Iterator[Scene]:
    """Let a leader that stood still find that another leads, without its last batches."""
    with _cluster(kind) as cluster:
        first, second = cluster.nodes[FIRST], cluster.nodes[SECOND]
        _create(cluster, ["cut"], 1, unclean_leader_election_enable="true")
        _wait(cluster, lambda p: set(p.isr_nodes) == {FIRST, SECOND}, "a full ISR")
        second.kill()
        _wait(cluster, lambda p: p.isr_nodes == [FIRST], "the end of the follower's session")
        Load(first.port).fill("cut", BATCHES, 100, lambda _: int(time.time() * 1000))
        _signal(first, signal.SIGSTOP)
        second.launch()
        _wait(cluster, lambda p: p.leader_id == SECOND, "an unclean election")
        eventually(lambda: _is_listening(second), "the new leader's port", DEADLINE_SECONDS)
        Load(second.port).fill("cut", 1, 100, lambda _: int(time.time() * 1000))

        def run() -> None:
            _signal(first, signal.SIGCONT)
            _wait(cluster, lambda p: FIRST in p.isr_nodes, "the truncated replica in the ISR")

        yield Scene((first.port,), run)


@contextmanager
def preferred_election_of_3000_partitions(kind: str) -> Iterator[Scene]:
    """Elect the preferred leader of idle partitions, which came back with all its replicas."""
    with _cluster(kind) as cluster:
        first, second = cluster.nodes[FIRST], cluster.nodes[SECOND]
        _create(cluster, [f"idle-{number}" for number in range(TOPICS)], PARTITIONS)
        _wait(cluster, lambda p: set(p.isr_nodes) == {FIRST, SECOND}, "a full ISR")
        first.stop(DEADLINE_SECONDS)
        _wait(cluster, lambda p: p.leader_id == SECOND, "the other leader")
        first.launch()
        _wait(cluster, lambda p: set(p.isr_nodes) == {FIRST, SECOND}, "a full ISR again")

        def run() -> None:
            request = ElectLeadersRequest(topic_partitions=None, timeout_ms=60_000)
            with cluster.nodes[CONTROLLER].client(DEADLINE_SECONDS) as client:
                client.call(request, 2)
            _wait(cluster, lambda p: p.leader_id == FIRST, "the preferred leader")

        yield Scene((first.port, second.port), run)


def _create(cluster: Cluster, names: list[str], partitions: int, **configs: str) -> None:
    """Create topics whose preferred leader is the first broker."""
    shape = CreateTopicsRequest.CreatableTopic
    replicas = shape.CreatableReplicaAssignment
    topics = [
        shape(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                replicas(partition_index=index, broker_ids=[FIRST, SECOND])
                for index in range(partitions)
            ],
            configs=[
                shape.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        for name in names
    ]
    with cluster.nodes[CONTROLLER].client(DEADLINE_SECONDS) as client:
        response = client.call(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    assert all(topic.error_code == 0 for topic in response.topics), response


def _wait(cluster: Cluster, holds: Callable[[Partition], bool], what: str) -> None:
    """Wait until something holds for all partitions, as the controller's node sees them."""

    def check() -> bool:
        with cluster.nodes[CONTROLLER].client() as client:
            topics = client.call(MetadataRequest(topics=None), 12).topics
        return all(holds(partition) for topic in topics for partition in topic.partitions)

    eventually(check, what, DEADLINE_SECONDS)


def _is_listening(node: Node) -> bool:
    """Return whether a node accepts clients: Kafka's nodes register a moment earlier."""
    try:
        node.client().close()
    except OSError:
        return False
    return True


def _signal(node: Node, number: signal.Signals) -> None:
    assert node.process is not None
    node.process.send_signal(number)
