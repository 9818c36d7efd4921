"""Partitions and leaders that move between brokers while clients use them.

Nodes 1 to 3 are controllers and brokers, node 4 is a broker only.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.cluster.nodes import BROKER, Cluster
from compat_tests.cluster.reassignments import (
    Plan,
    directories,
    is_moved,
    reassign,
    reassignments,
    wait_deleted,
    wait_moved,
)
from compat_tests.cluster.tools import CLUSTER, ELECTION, REASSIGN, by_broker
from compat_tests.cluster.topics import (
    create_on,
    describe,
    isr,
    leader,
    produce,
    producer,
    read,
    segments,
)
from compat_tests.confluent_kafka.clients import value_of
from compat_tests.harness.jvm import Jvm, Ran
from compat_tests.harness.wait import eventually
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.configs.resource_types import TOPIC

SETTINGS = {
    "broker_session_timeout_ms": "9000",
    "broker_heartbeat_interval_ms": "500",
}
KILOBYTE = 1000
STOPPED = {0, 143}
"""The exit codes of a stop in order; Java's is that of the signal."""


@pytest.fixture
def four(make: Callable[..., Cluster], broker_kind: str) -> Cluster:
    cluster = make(3, **SETTINGS)
    cluster.add(4, broker_kind, BROKER)
    cluster.start()
    return cluster


def replicas(cluster: Cluster, topic: str, index: int = 0) -> list[int]:
    partition = describe(cluster, topic, index)
    return [] if partition is None else list(partition.replica_nodes)


def wait_replicas(cluster: Cluster, topic: str, index: int, brokers: set[int]) -> None:
    eventually(lambda: set(replicas(cluster, topic, index)) == brokers, f"replicas on {brokers}")


@contextmanager
def producing(cluster: Cluster, topic: str) -> Iterator[list[int]]:
    """Produce numbers to partition 0 until the end; yield those acknowledged, in their order."""
    acknowledged: list[int] = []
    errors: list[object] = []
    is_over = threading.Event()

    def on_delivery(error: object, message) -> None:
        if error is None:
            acknowledged.append(int(message.value()))
        else:
            errors.append(error)

    def run() -> None:
        client = producer(cluster)
        number = 0
        while not is_over.is_set():
            client.produce(topic, b"%d" % number, partition=0, on_delivery=on_delivery)
            client.poll(0.002)
            number += 1
        client.flush(60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: len(acknowledged) > 100, "the producer runs")
        yield acknowledged
        count = len(acknowledged)
        eventually(lambda: len(acknowledged) > count + 100, lambda: f"goes on: {cluster.tails()}")
    finally:
        is_over.set()
        thread.join()
    assert not errors, errors[:3]


def is_equal(cluster: Cluster, topic: str, *brokers: int) -> bool:
    """Whether the replicas have the same bytes, without what Apache Kafka preallocates."""
    contents = {segments(cluster.nodes[broker], topic) for broker in brokers}
    return len(contents) == 1 and contents != {b""}


def fill(cluster: Cluster, topic: str, megabytes: int) -> None:
    client = producer(cluster)
    value = os.urandom(100 * KILOBYTE)
    for _ in range(megabytes * 10):
        client.produce(topic, value, partition=0)
        client.poll(0)
        client.flush(60)


def test_partition_moves_under_a_producer_and_loses_nothing(four: Cluster) -> None:
    """All replicas change, and so the leader; the old replicas' data are deleted (invariant 36)."""
    cluster = four
    create_on(cluster, "t", [(1, 2)], file_delete_delay_ms="1000", min_insync_replicas="2")
    with producing(cluster, "t") as acknowledged:
        assert reassign(cluster, "t", (3, 4)) == 0
        eventually(lambda: is_moved(cluster, "t", 3, 4), lambda: f"moved: {cluster.tails()}")
    assert read(cluster, "t", len(acknowledged)) == acknowledged
    assert acknowledged == list(range(len(acknowledged)))
    eventually(lambda: is_equal(cluster, "t", 3, 4), "equal replicas")
    for node in (cluster.nodes[1], cluster.nodes[2]):
        wait_deleted(node, "t")


def test_partition_moves_there_and_back(four: Cluster) -> None:
    """A replica that returns to a broker begins anew there."""
    cluster = four
    create_on(cluster, "t", [(1, 2)])
    with producing(cluster, "t") as acknowledged:
        for brokers in ((2, 3, 4), (1,), (1, 2, 3)):
            assert reassign(cluster, "t", brokers) == 0
            wait_moved(cluster, "t", *brokers)
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def test_cancelled_reassignment_returns_to_the_old_replicas(four: Cluster) -> None:
    cluster = four
    create_on(cluster, "t", [(1, 2)])
    last = cluster.nodes[4]
    last.stop()
    with producing(cluster, "t") as acknowledged:
        assert reassign(cluster, "t", (3, 4)) == 0
        eventually(lambda: reassignments(cluster), "it goes on")
        eventually(lambda: 3 in isr(cluster, "t"), "one of the new replicas is in sync")
        assert reassignments(cluster) == {("t", 0): ({3, 4}, {1, 2})}
        assert reassign(cluster, "t", None) == 0
        eventually(lambda: is_moved(cluster, "t", 1, 2), lambda: f"as before: {cluster.tails()}")
    assert reassign(cluster, "t", None) != 0, "nothing is left to cancel"
    last.launch()
    cluster.wait_complete()
    eventually(lambda: "t-0" not in directories(cluster.nodes[3], "t"), "no replica on 3")
    assert not directories(last, "t")
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def test_broker_that_missed_a_reassignment_removes_its_replica(four: Cluster) -> None:
    cluster = four
    create_on(cluster, "t", [(3, 4)])
    last = cluster.nodes[4]
    last.stop()
    with producing(cluster, "t") as acknowledged:
        assert reassign(cluster, "t", (1, 2)) == 0
        eventually(lambda: is_moved(cluster, "t", 1, 2), lambda: f"moved: {cluster.tails()}")
    assert "t-0" in directories(last, "t")
    last.launch()
    cluster.wait_complete()
    eventually(lambda: "t-0" not in directories(last, "t"), f"renamed: {last.read_log()[-2000:]}")
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def topic_settings(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return the throttled replicas that a topic's settings name."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    with cluster.living[0].client() as client:
        (result,) = client.call(DescribeConfigsRequest(resources=[resource]), 4).results
    return {c.name: c.value for c in result.configs if "throttled" in c.name and c.value}


def test_throttled_reassignment_with_the_tool(jvm: Jvm, four: Cluster, tmp_path: Path) -> None:
    """A throttled copy takes minutes, until the tool raises its rate."""
    cluster = four
    create_on(cluster, "t", [(1, 2)])
    fill(cluster, "t", 30)
    plan = Plan(jvm, cluster, tmp_path / "plan.json", "t", 3, 4)
    started = plan.run("--execute", "--throttle", "1000").ok()
    assert "Successfully started partition reassignment for t-0" in started
    assert "The inter-broker throttle limit was set to 1000 B/s" in started
    throttled = {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:3,0:4",
    }
    eventually(lambda: topic_settings(cluster, "t") == throttled, "throttled replicas")
    assert "still in progress" in plan.run("--verify").ok()
    listed = jvm.tool(REASSIGN, *by_broker(cluster), "--list").ok()
    assert "t-0: replicas: 3,4,1,2. adding: 3,4. removing: 1,2." in listed
    produced = producer(cluster)
    produced.produce("t", b"in between", partition=0)
    assert produced.flush(60) == 0
    assert len(segments(cluster.nodes[3], "t")) < 20_000 * KILOBYTE
    more = ("--execute", "--additional", "--throttle", "1000000000")
    assert "throttle limit was set to 1000000000 B/s" in plan.run(*more).ok()
    eventually(lambda: is_moved(cluster, "t", 3, 4), lambda: f"moved: {cluster.tails()}")
    verified = plan.run("--verify").ok()
    assert "Reassignment of partition t-0 is completed." in verified
    assert "Clearing topic-level throttles on topic t" in verified
    eventually(lambda: not topic_settings(cluster, "t"), "no throttle is left")
    assert leader(cluster, "t").id in (3, 4)


def test_reassignment_that_the_tool_cancels(jvm: Jvm, four: Cluster, tmp_path: Path) -> None:
    cluster = four
    create_on(cluster, "t", [(1, 2)])
    fill(cluster, "t", 30)
    plan = Plan(jvm, cluster, tmp_path / "plan.json", "t", 2, 3)
    plan.run("--execute", "--throttle", "1000").ok()
    assert reassignments(cluster) == {("t", 0): ({3}, {1})}
    cancelled = plan.run("--cancel").ok()
    assert "Successfully cancelled partition reassignment" in cancelled
    eventually(lambda: is_moved(cluster, "t", 2, 1), lambda: f"as before: {cluster.tails()}")
    eventually(lambda: not topic_settings(cluster, "t"), "no throttle is left")
    eventually(lambda: "t-0" not in directories(cluster.nodes[3], "t"), "no replica on 3")


def test_plan_that_the_tool_generates(jvm: Jvm, four: Cluster, tmp_path: Path) -> None:
    """A new broker takes replicas by the tool's own plan."""
    cluster = four
    create_on(cluster, "t", [(1, 2), (2, 3), (3, 1)])
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
    arguments = ("--topics-to-move-json-file", str(topics), "--broker-list", "2,4", "--generate")
    generated = jvm.tool(REASSIGN, *by_broker(cluster), *arguments).ok()
    proposal = generated.partition("Proposed partition reassignment configuration")[2].strip()
    plan = Plan(jvm, cluster, tmp_path / "plan.json", "t", 2, 4)
    plan.path.write_text(proposal)
    assert "Successfully started" in plan.run("--execute").ok()
    for index in range(3):
        wait_replicas(cluster, "t", index, {2, 4})
    eventually(lambda: not reassignments(cluster), "nothing is left to do")
    eventually(
        lambda: plan.run("--verify").ok().count("is completed.") == 3, "known to the brokers"
    )


def elect(jvm: Jvm, cluster: Cluster, kind: str, topic: str) -> Ran:
    election = ("--election-type", kind, "--topic", topic, "--partition", "0")
    return jvm.tool(ELECTION, *by_broker(cluster), *election)


def move_leader(cluster: Cluster, topic: str) -> None:
    """Make the second replica the preferred one; the first stays the leader."""
    first, *others = replicas(cluster, topic)
    assert reassign(cluster, topic, (*others, first)) == 0
    eventually(lambda: replicas(cluster, topic) == [*others, first], "another order")
    assert leader(cluster, topic).id == first


def test_preferred_leader_is_elected_with_the_tool(jvm: Jvm, four: Cluster) -> None:
    """A producer loses nothing when the leader moves (invariant 37)."""
    cluster = four
    create_on(cluster, "t", [(1, 2, 3)], min_insync_replicas="2")
    with producing(cluster, "t") as acknowledged:
        move_leader(cluster, "t")
        assert (
            "Successfully completed leader election" in elect(jvm, cluster, "preferred", "t").ok()
        )
        eventually(lambda: leader(cluster, "t").id == 2, "the preferred replica leads")
    assert "Valid replica already elected" in elect(jvm, cluster, "preferred", "t").ok()
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def test_leaders_return_to_preferred_replicas_by_themselves(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(3, **SETTINGS, leader_imbalance_check_interval_seconds="1")
    cluster.start()
    create_on(cluster, "t", [(1, 2, 3)], min_insync_replicas="2")
    with producing(cluster, "t") as acknowledged:
        cluster.nodes[1].stop()
        eventually(lambda: leader(cluster, "t").id != 1, "another leader")
        cluster.nodes[1].launch()
        eventually(
            lambda: leader(cluster, "t").id == 1, lambda: f"the first leads: {cluster.tails()}"
        )
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def test_leader_that_is_not_in_sync_is_elected_only_with_the_tool(jvm: Jvm, four: Cluster) -> None:
    """The last replica in sync is lost; another one leads without its records (invariant 33)."""
    cluster = four
    create_on(cluster, "t", [(4, 3)])
    client = producer(cluster)
    assert produce(client, "t", range(100)) == list(range(100))
    eventually(lambda: is_equal(cluster, "t", 3, 4), "copied")
    cluster.nodes[3].stop()
    eventually(lambda: isr(cluster, "t") == {4}, "a smaller ISR")
    assert produce(client, "t", range(100, 200)) == list(range(100, 200))
    cluster.nodes[4].kill()
    eventually(lambda: describe(cluster, "t").leader_id == -1, "no leader")
    cluster.nodes[3].launch()
    cluster.wait_complete()
    assert describe(cluster, "t").leader_id == -1
    assert "Successfully completed leader election" in elect(jvm, cluster, "unclean", "t").ok()
    eventually(lambda: leader(cluster, "t").id == 3, "the other replica leads")
    assert produce(producer(cluster), "t", range(200, 300)) == list(range(200, 300))
    cluster.nodes[4].launch()
    eventually(lambda: isr(cluster, "t") == {3, 4}, lambda: f"it returns: {cluster.tails()}")
    eventually(lambda: is_equal(cluster, "t", 3, 4), "without its own records")
    assert read(cluster, "t", 200) == [*range(100), *range(200, 300)]


def test_drained_broker_is_unregistered(jvm: Jvm, four: Cluster) -> None:
    """Its partitions move to the others, then it is stopped and removed from the cluster."""
    cluster = four
    create_on(cluster, "t", [(4, 1)], min_insync_replicas="2")
    last = cluster.nodes[4]
    with producing(cluster, "t") as acknowledged:
        assert reassign(cluster, "t", (2, 1)) == 0
        eventually(lambda: is_moved(cluster, "t", 2, 1), lambda: f"moved: {cluster.tails()}")
        assert last.stop() in STOPPED
        unregister = ("unregister", *by_broker(cluster), "--id", "4")
        assert "no longer registered" in jvm.tool(CLUSTER, *unregister).ok()

    def broker_ids() -> list[str]:
        how = (*by_broker(cluster), "--include-fenced-brokers")
        output = jvm.tool(CLUSTER, "list-endpoints", *how).ok()
        return [line.split()[0] for line in output.splitlines()[1:]]

    eventually(lambda: broker_ids() == ["1", "2", "3"], "broker 4 is not listed")
    assert read(cluster, "t", len(acknowledged)) == acknowledged


def test_consumer_reads_from_the_replica_in_its_rack(make: Callable[..., Cluster]) -> None:
    """Follower fetching (KIP-392); the consumer returns to the leader when the follower dies."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    cluster = make(3, **SETTINGS, replica_selector_class=selector)
    cluster.configure()
    for node in cluster.nodes.values():
        with node.config.open("a") as properties:
            properties.write(f"broker.rack=rack-{node.id}\n")
    cluster.start()
    create_on(cluster, "t", [(1, 2, 3)], min_insync_replicas="2")
    sources: set[int] = set()

    def on_statistics(text: str) -> None:
        topics = json.loads(text)["topics"]
        if "t" in topics:
            sources.add(topics["t"]["partitions"]["0"]["broker"])

    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "client.rack": "rack-3",
        "statistics.interval.ms": 100,
        "stats_cb": on_statistics,
    }
    client = Consumer(settings)
    values: list[int] = []

    def consume(count: int) -> bool:
        values.extend(int(value_of(m)) for m in client.consume(1000, 0.2) if m.error() is None)
        return len(values) >= count

    try:
        client.assign([TopicPartition("t", 0, 0)])
        with producing(cluster, "t") as acknowledged:
            eventually(lambda: consume(100) and 3 in sources, f"from broker 3, not {sources}")
            cluster.nodes[3].kill()
            count = len(acknowledged)
            eventually(lambda: consume(count + 100), lambda: f"from the leader: {cluster.tails()}")
        eventually(lambda: consume(len(acknowledged)), "the rest")
    finally:
        client.close()
    assert values == acknowledged
