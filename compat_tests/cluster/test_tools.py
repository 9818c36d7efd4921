"""Apache's tools for the quorum against kwire's nodes."""

from __future__ import annotations

import re
import shutil

import pytest

from compat_tests.cluster.nodes import BROKER, CONTROLLER, STOP_SECONDS
from compat_tests.cluster.tools import (
    CLUSTER,
    FEATURES,
    QUORUM,
    add,
    by_broker,
    directory_id,
    remove,
    replication,
    status,
)
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually

STEADY = {"controller_quorum_fetch_timeout_ms": "20000"}
"""A setting with which no other controller is elected because the machine is busy."""


@pytest.mark.parametrize("count", [1, 3])
def test_describe(jvm, make, count):
    cluster = make(count, **STEADY)
    cluster.start()
    quorum = status(jvm, cluster)
    leader = cluster.active().id
    assert quorum["ClusterId"] == kafka.CLUSTER_ID
    assert quorum["LeaderId"] == str(leader)
    assert int(quorum["LeaderEpoch"]) >= 1
    assert int(quorum["HighWatermark"]) > 0
    assert quorum["MaxFollowerLag"] == "0" or count > 1
    roles = replication(jvm, cluster)
    assert set(roles) == set(range(1, count + 1))
    assert roles.pop(leader) == "Leader"
    assert set(roles.values()) <= {"Follower"}
    for address in [node.address for node in cluster.brokers]:
        features = jvm.tool(FEATURES, "--bootstrap-server", address, "describe").ok()
        assert "metadata.version" in features
        output = jvm.tool(CLUSTER, "cluster-id", "--bootstrap-server", address).ok()
        assert kafka.CLUSTER_ID in output
    by_controller = f"127.0.0.1:{cluster.active().controller_port}"
    direct = jvm.tool(QUORUM, "--bootstrap-controller", by_controller, "describe", "--status").ok()
    assert re.search(rf"LeaderId: +{leader}\n", direct)


@pytest.fixture
def dynamic(make, jvm):
    """A cluster of three voters, two of which joined a quorum of one (kraft.version 1)."""
    cluster = make(3, dynamic=True, **STEADY)
    cluster.start_standalone()
    assert replication(jvm, cluster) == {1: "Leader", 2: "Observer", 3: "Observer"}
    for node_id in (2, 3):
        add(jvm, by_broker(cluster), cluster.nodes[node_id]).ok()
    return cluster


def test_voters_join_and_leave(jvm, dynamic):
    cluster = dynamic
    assert replication(jvm, cluster) == {1: "Leader", 2: "Follower", 3: "Follower"}
    remove(jvm, by_broker(cluster), 1, directory_id(cluster.nodes[1])).ok()
    eventually(lambda: cluster.active().id != 1, "another leads")
    eventually(lambda: replication(jvm, cluster).get(1) == "Observer", "it goes on as an observer")
    roles = replication(jvm, cluster)
    assert sorted(roles.values()) == ["Follower", "Leader", "Observer"]


def test_a_wiped_voter_comes_back(jvm, dynamic):
    """A voter with a new disk is another replica: the old one is removed, the new one joins."""
    cluster = dynamic
    leader = cluster.active()
    wiped = next(node for node in cluster.controllers if node is not leader)
    lost = directory_id(wiped)
    wiped.kill()
    shutil.rmtree(wiped.directory / "data")
    wiped.launch()
    assert wiped.process is not None
    assert wiped.process.wait(STOP_SECONDS) != 0
    reason = "No readable meta.properties" if wiped.kind == "kafka" else "format"
    assert reason in wiped.read_log()
    wiped.prepare("--no-initial-controllers")
    wiped.launch()
    cluster.wait_complete()
    assert replication(jvm, cluster)[wiped.id] in ("Follower", "Observer")
    remove(jvm, by_broker(cluster), wiped.id, lost).ok()
    eventually(lambda: replication(jvm, cluster).get(wiped.id) == "Observer", "an observer")
    add(jvm, by_broker(cluster), wiped).ok()
    assert replication(jvm, cluster)[wiped.id] == "Follower"


def test_a_wiped_static_voter_says_what_to_do(make):
    cluster = make(3)
    cluster.start()
    wiped = next(node for node in cluster.controllers if node is not cluster.active())
    wiped.kill()
    shutil.rmtree(wiped.directory / "data")
    wiped.launch()
    assert wiped.process is not None
    assert wiped.process.wait(STOP_SECONDS) == (2 if wiped.kind == "kwire" else 1)
    assert "kwire format --cluster-id" in wiped.read_log() or wiped.kind == "kafka"


def test_roles_apart(make):
    """Brokers and controllers in processes of their own."""
    cluster = make(0)
    cluster.add(1, "kwire", CONTROLLER)
    cluster.add(2, "kwire", BROKER)
    cluster.add(3, "kwire", BROKER)
    cluster.start()
    assert cluster.active().id == 1
    for node in reversed(cluster.nodes.values()):
        assert node.stop() == 0
