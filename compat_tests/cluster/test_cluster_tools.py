"""The other tools against three nodes: cluster, topics, configs, log-dirs, reassign, election."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import BROKER, CONTROLLER, Cluster
from compat_tests.cluster.tools import (
    API_VERSIONS,
    CLUSTER,
    CONFIGS,
    ELECTION,
    LOG_DIRS,
    REASSIGN,
    TOPICS,
    by_broker,
    by_controller,
)
from compat_tests.cluster.topics import wait_known
from compat_tests.harness.jvm import Jvm, Ran
from compat_tests.harness.wait import eventually


@pytest.fixture
def three(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, broker_session_timeout_ms="9000", broker_heartbeat_interval_ms="500")
    cluster.start()
    return cluster


def endpoints(jvm, how: tuple[str, str], *more: str) -> dict[int, tuple[str, str]]:
    """Return the columns of ``list-endpoints``, by node id."""
    lines = jvm.tool(CLUSTER, "list-endpoints", *how, *more).ok().splitlines()[1:]
    cells = [line.split() for line in lines if line.strip()]
    return {int(row[0]): (row[2], " ".join(row[4:])) for row in cells}


def partitions(jvm, cluster: Cluster, topic: str) -> dict[int, tuple[str, str]]:
    """Return the leader and the replicas of each partition."""
    output = jvm.tool(TOPICS, *by_broker(cluster), "--describe", "--topic", topic).out
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S*)", output)
    return {int(number): (leader, replicas) for number, leader, replicas in rows}


def create(jvm, cluster: Cluster, topic: str) -> None:
    """Create a topic with a partition on each of three brokers, and wait until all know it."""
    arguments = ("--create", "--topic", topic, "--replica-assignment", "1,2,3")
    jvm.tool(TOPICS, *by_broker(cluster), *arguments).ok()
    wait_known(cluster, topic)


def test_endpoints_fencing_and_unregistering(jvm, three):
    cluster, how = three, by_broker(three)
    brokers = {n.id: (str(n.port), "unfenced broker") for n in cluster.brokers}
    assert endpoints(jvm, how) == brokers
    active = cluster.active()
    controllers = {n.id: (str(n.controller_port), "controller") for n in cluster.controllers}
    eventually(lambda: endpoints(jvm, by_controller(active)) == controllers, "all have registered")
    wrong = jvm.tool(CLUSTER, "list-endpoints", *by_controller(active), "--include-fenced-brokers")
    assert wrong.code == 1
    unknown = jvm.tool(CLUSTER, "unregister", *how, "--id", "9")
    assert "BrokerIdNotRegisteredException" in unknown.out + unknown.err
    create(jvm, cluster, "spread")
    dead = next(node for node in cluster.brokers if node is not active)
    dead.kill()
    living = {key: value for key, value in brokers.items() if key != dead.id}
    how = by_broker(cluster)
    eventually(lambda: endpoints(jvm, how) == living, "the dead one is fenced")
    fenced = {**living, dead.id: (str(dead.port), "fenced broker")}
    eventually(  # The tool may ask the other broker this time.
        lambda: endpoints(jvm, how, "--include-fenced-brokers") == fenced, "it is listed as fenced"
    )
    eventually(
        lambda: partitions(jvm, cluster, "spread").get(dead.id - 1) == ("none", str(dead.id)),
        "its partition has no leader",
    )
    ran = jvm.tool(ELECTION, *how, "--election-type", "preferred", "--all-topic-partitions")
    assert "PreferredLeaderNotAvailableException" in ran.out
    assert f"spread-{dead.id - 1}" in ran.out
    assert (
        "is no longer registered"
        in jvm.tool(CLUSTER, "unregister", *how, "--id", str(dead.id)).ok()
    )
    eventually(
        lambda: endpoints(jvm, how, "--include-fenced-brokers") == living,
        "it is unregistered",
    )


def test_topics(jvm, three):
    cluster, how = three, by_broker(three)
    create(jvm, cluster, "named")
    named = {0: ("1", "1"), 1: ("2", "2"), 2: ("3", "3")}
    assert eventually(lambda: partitions(jvm, cluster, "named"), "it is there") == named
    more = ("--partitions", "4", "--replica-assignment", "1,2,3,2")
    jvm.tool(TOPICS, *how, "--alter", "--topic", "named", *more)
    eventually(lambda: partitions(jvm, cluster, "named") == {**named, 3: ("2", "2")}, "four")
    for arguments, why in (
        (("--create", "--topic", "x", "--replication-factor", "9"), "InvalidReplicationFactor"),
        (("--create", "--topic", "x", "--replica-assignment", "7"), "InvalidReplicaAssignment"),
        (("--create", "--topic", "named"), "already exists"),
        (("--alter", "--topic", "named", "--partitions", "2"), "InvalidPartitions"),
        (("--delete", "--topic", "nope"), "does not exist"),
    ):
        ran = jvm.tool(TOPICS, *how, *arguments)
        assert why in ran.out + ran.err, arguments
    assert "named" in jvm.tool(TOPICS, *how, "--list").out
    for problem in ("--unavailable-partitions", "--under-replicated-partitions"):
        assert jvm.tool(TOPICS, *how, "--describe", problem).out.strip() == ""


def test_configs(jvm: Jvm, three: Cluster) -> None:
    how = by_broker(three)
    default = ("--entity-type", "brokers", "--entity-default")
    second = ("--entity-type", "brokers", "--entity-name", "2")

    def settings_of(*entity: str) -> str:
        return jvm.tool(CONFIGS, *how, "--describe", *entity).ok()

    jvm.tool(CONFIGS, *how, "--alter", *default, "--add-config", "log.retention.ms=86400000").ok()
    jvm.tool(CONFIGS, *how, "--alter", *second, "--add-config", "log.cleaner.threads=2").ok()
    eventually(lambda: "log.retention.ms=86400000" in settings_of(*default), "the default")
    eventually(
        lambda: "log.cleaner.threads=2" in settings_of(*second),
        "broker 2",
    )
    assert "DYNAMIC_BROKER_CONFIG:log.cleaner.threads=2" in settings_of(*second)
    direct = by_controller(three.active())
    jvm.tool(CONFIGS, *direct, "--alter", *default, "--add-config", "log.retention.ms=77").ok()
    eventually(lambda: "log.retention.ms=77" in settings_of(*default), "by the controller")
    eventually(
        lambda: "log.retention.ms=77" in jvm.tool(CONFIGS, *direct, "--describe", *default).ok(),
        "at the controllers",
    )
    for entity, change in ((second, "node.id=4"), (default, "log.retention.ms=many")):
        assert jvm.tool(CONFIGS, *how, "--alter", *entity, "--add-config", change).code == 1
    jvm.tool(CONFIGS, *how, "--alter", *second, "--delete-config", "log.cleaner.threads").ok()
    eventually(lambda: "log.cleaner.threads=2" not in settings_of(*second), "it is removed")


def test_settings_of_a_controller(
    jvm: Jvm, make: Callable[..., Cluster], broker_kind: str, tmp_path: Path
) -> None:
    cluster = make(0)
    cluster.add(1, broker_kind, BROKER)
    controller = cluster.add(3000, broker_kind, CONTROLLER)
    cluster.start()
    how = by_controller(controller)

    def alter(node_id: int) -> Ran:
        entity = ("--entity-type", "brokers", "--entity-name", str(node_id))
        return jvm.tool(CONFIGS, *how, "--alter", *entity, "--add-config", "max.connections=99")

    alter(1).ok()
    eventually(lambda: alter(3000).code == 0, "the controller has registered")
    unknown = alter(9)
    assert unknown.code == 1
    assert "No node with id 9 found." in unknown.out + unknown.err
    # the tool removes the throttles of all nodes that DescribeCluster lists, here the controllers
    jvm.tool(TOPICS, *by_broker(cluster), "--create", "--topic", "moved").ok()
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [1]}]}
        )
    )
    jvm.tool(REASSIGN, *how, "--cancel", "--reassignment-json-file", str(plan)).ok()


def test_log_dirs_and_versions(jvm, three):
    how = by_broker(three)
    create(jvm, three, "spread")

    def partitions_by_broker() -> dict[int, list[str]]:
        output = jvm.tool(LOG_DIRS, *how, "--describe", "--topic-list", "spread").ok()
        answer = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return {
            entry["broker"]: [p["partition"] for d in entry["logDirs"] for p in d["partitions"]]
            for entry in answer["brokers"]
        }

    eventually(
        lambda: partitions_by_broker() == {1: ["spread-0"], 2: ["spread-1"], 3: ["spread-2"]},
        "every broker lists its partition",
    )
    unknown = jvm.tool(LOG_DIRS, *how, "--describe", "--broker-list", "1,9")
    assert "9" in unknown.out + unknown.err
    versions = jvm.tool(API_VERSIONS, *how).ok()
    assert versions.count(" -> (") == 3
    assert versions.count("CreateTopics(19): 2 to 7 [usable: 7]") == 3


def test_reassigning(jvm, three, tmp_path: Path):
    """Invalid reassignments are refused; one to the present replicas completes at once."""
    how = by_broker(three)
    create(jvm, three, "named")

    def reassign(topic: str, replicas: list[int], *how_far: str):
        plan = tmp_path / "plan.json"
        moved = [{"topic": topic, "partition": 0, "replicas": replicas}]
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        return jvm.tool(REASSIGN, *how, "--reassignment-json-file", str(plan), *how_far)

    for topic, replicas in (("named", [9]), ("nope", [1])):
        assert reassign(topic, replicas, "--execute").code == 1
    assert "Successfully started" in reassign("named", [1], "--execute").ok()
    eventually(lambda: "is completed" in reassign("named", [1], "--verify").ok(), "done")
    listed = jvm.tool(REASSIGN, *how, "--list").ok()
    assert "No partition reassignments found." in listed
    topics_file = tmp_path / "topics.json"
    topics_file.write_text(json.dumps({"version": 1, "topics": [{"topic": "named"}]}))
    plan = ("--topics-to-move-json-file", str(topics_file), "--broker-list", "1,2", "--generate")
    assert "Proposed partition reassignment" in jvm.tool(REASSIGN, *how, *plan).ok()
    for kind in ("preferred", "unclean"):
        only = ("--election-type", kind, "--topic", "named", "--partition", "0")
        assert "named-0" in jvm.tool(ELECTION, *how, *only).ok()
        none = ("--election-type", kind, "--topic", "nope", "--partition", "0")
        assert "UnknownTopicOrPartition" in str(jvm.tool(ELECTION, *how, *none))
