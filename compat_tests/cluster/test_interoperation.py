"""kwire's and Apache Kafka's nodes in one cluster, in every role."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import BROKER, COMBINED, CONTROLLER, Cluster, Node
from compat_tests.cluster.tools import add, by_broker, replication, status
from compat_tests.cluster.topics import creation, topics_at, wait_topics
from compat_tests.harness.wait import collect, eventually
from compat_tests.kafka_python.clients import consumer, fill, poll
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.metadata import MetadataRequest

pytestmark = pytest.mark.with_apache

PAIRS = [("kwire", "kafka"), ("kafka", "kwire")]


@pytest.fixture
def make(tmp_path: Path):
    """A maker of started clusters of given kinds and roles, closed at the end of the test."""
    clusters: list[Cluster] = []

    def cluster(*nodes: tuple[str, str], dynamic: bool = False, start: bool = True) -> Cluster:
        new = Cluster(tmp_path / f"cluster-{len(clusters)}", dynamic=dynamic)
        clusters.append(new)
        for number, (kind, roles) in enumerate(nodes):
            new.add(number + 1, kind, roles)
        if start:
            new.start()
        return new

    yield cluster
    for new in clusters:
        new.close()


def create(node: Node, name: str, partitions: int = 1) -> None:
    with node.client() as client:
        (result,) = client.call(creation(name, partitions=partitions), 7).topics
    assert result.error_code == 0, result


def produce_and_fetch(cluster: Cluster, topic: str, count: int = 200) -> None:
    """Produce records and consume them in a new group, through every leader of a partition."""
    fill(cluster.bootstrap, topic, [b"%d" % number for number in range(count)])
    with consumer(cluster.bootstrap, topic, group_id=f"{topic}-group") as reader:
        records = collect(lambda: poll(reader), count)
        reader.commit()
    assert len(records) == count


def check_invalid_settings(node: Node) -> None:
    """Check that a broker rejects what no controller checks: its number, a text for a time."""
    request = IncrementalAlterConfigsRequest
    resource = request.AlterConfigsResource
    for name, value in (("node.id", "7"), ("log.retention.ms", "soon")):
        config = resource.AlterableConfig(name=name, config_operation=0, value=value)
        own = resource(resource_type=4, resource_name=str(node.id), configs=[config])
        with node.client() as client:
            (result,) = client.call(request(resources=[own], validate_only=False), 1).responses
        assert result.error_code == 42, result


@pytest.mark.parametrize(("controller", "broker"), PAIRS)
def test_broker_of_one_with_controller_of_the_other(make, controller, broker):
    cluster = make((controller, CONTROLLER), (broker, BROKER), (broker, BROKER))
    create(cluster.nodes[2], "orders", 4)
    create(cluster.nodes[3], "more")
    eventually(lambda: topics_at(cluster.nodes[2]) == {"orders": 4, "more": 1}, "both topics")
    produce_and_fetch(cluster, "orders")
    check_invalid_settings(cluster.nodes[2])
    assert cluster.nodes[2].stop() in (0, 143)
    eventually(lambda: cluster.nodes[3].brokers_seen() == {3}, "the stopped broker is fenced")
    cluster.nodes[2].launch()
    cluster.wait_complete()


def test_replicas_under_a_kwire_controller(make):
    """Apache's brokers shrink and grow the ISR by AlterPartition; leaders move if a broker dies."""
    cluster = make(("kwire", CONTROLLER), ("kafka", BROKER), ("kafka", BROKER))
    request = creation("orders", partitions=4)
    request.topics[0].replication_factor = 2
    with cluster.nodes[2].client() as client:
        (result,) = client.call(request, 7).topics
    assert result.error_code == 0, result
    both = {(2, 3)}
    eventually(lambda: in_sync(cluster.nodes[3]) == both, "all replicas are in sync")
    produce_and_fetch(cluster, "orders")
    cluster.nodes[2].kill()
    eventually(lambda: in_sync(cluster.nodes[3]) == {(3,)}, "the dead one is not in sync")
    values = [b"%d" % number for number in range(50)]
    fill(cluster.nodes[3].address, "orders", values)
    cluster.nodes[2].launch()
    cluster.wait_complete()
    eventually(lambda: in_sync(cluster.nodes[3]) == both, "it has caught up")


def in_sync(node: Node) -> set[tuple[int, ...]]:
    """Return the in-sync replicas of a topic's partitions by one node's metadata."""
    topic_request = MetadataRequest.MetadataRequestTopic(name="orders")
    with node.client() as client:
        (topic,) = client.call(MetadataRequest(topics=[topic_request]), 12).topics
    return {tuple(sorted(partition.isr_nodes)) for partition in topic.partitions}


@pytest.mark.parametrize(
    "kinds", [("kwire", "kwire", "kafka"), ("kafka", "kafka", "kwire")], ids="-".join
)
def test_voters_of_both(make, kinds):
    """A mixed quorum elects, goes on without its leader, and lets it rejoin."""
    cluster = make(*[(kind, COMBINED) for kind in kinds])
    for node in cluster.brokers:
        create(node, f"by-{node.id}", 3)
    topics = {f"by-{node.id}": 3 for node in cluster.brokers}
    for number in range(3):
        victim = cluster.active()
        victim.kill()
        living = [node for node in cluster.brokers if node.alive]
        for node in living:
            create(node, f"round-{number}-{node.id}")
            topics[f"round-{number}-{node.id}"] = 1
        victim.launch()
        cluster.wait_complete()
    for node in cluster.brokers:
        wait_topics(node, topics)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_observer_becomes_a_voter(make, jvm, first, second):
    cluster = make((first, COMBINED), (second, COMBINED), dynamic=True, start=False)
    cluster.start_standalone()
    assert replication(jvm, cluster) == {1: "Leader", 2: "Observer"}
    create(cluster.nodes[2], "orders", 4)
    add(jvm, by_broker(cluster), cluster.nodes[2]).ok()
    assert replication(jvm, cluster) == {1: "Leader", 2: "Follower"}
    voters = status(jvm, cluster)["CurrentVoters"]
    assert re.findall(r'"id": (\d)', voters) == ["1", "2"]
    produce_and_fetch(cluster, "orders")
