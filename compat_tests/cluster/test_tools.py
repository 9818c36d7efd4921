"""Apache's tools for the quorum against kwire's nodes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import BROKER, CONTROLLER, Cluster, Node
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"


@pytest.fixture
def make(tmp_path: Path, broker_kind: str):
    """Clusters that are ended with the test."""
    made: list[Cluster] = []

    def cluster(count: int, *, dynamic: bool = False, **overrides: str) -> Cluster:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        one = Cluster(tmp_path / f"cluster-{len(made)}", named, dynamic=dynamic)
        made.append(one)
        for node_id in range(1, count + 1):
            one.add(node_id, broker_kind)
        return one

    yield cluster
    for one in made:
        one.close()


def status(jvm, cluster: Cluster) -> dict[str, str]:
    """What ``describe --status`` says, by its first words."""
    said = jvm.tool(QUORUM, "--bootstrap-server", cluster.bootstrap, "describe", "--status").ok()
    pairs = (line.partition(":") for line in said.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def replication(jvm, cluster: Cluster) -> dict[int, str]:
    """What ``describe --replication`` calls each node: Leader, Follower or Observer."""
    said = jvm.tool(QUORUM, "--bootstrap-server", cluster.bootstrap, "describe", "--replication")
    rows = [line.split() for line in said.ok().splitlines()[1:] if line.strip()]
    voters = {int(row[0]): row[-1] for row in rows if row[-1] != "Observer"}
    return {**{int(row[0]): "Observer" for row in rows}, **voters}


def directory_id(node: Node) -> str:
    found = re.search(r"directory.id=(\S+)", (node.directory / "data/meta.properties").read_text())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("count", [1, 3])
def test_describe(jvm, make, count):
    cluster = make(count)
    cluster.start()
    said = status(jvm, cluster)
    leader = cluster.active().id
    assert said["ClusterId"] == kafka.CLUSTER_ID
    assert said["LeaderId"] == str(leader)
    assert int(said["LeaderEpoch"]) >= 1
    assert int(said["HighWatermark"]) > 0
    assert said["MaxFollowerLag"] == "0" or count > 1
    roles = replication(jvm, cluster)
    assert set(roles) == set(range(1, count + 1))
    assert roles.pop(leader) == "Leader"
    assert set(roles.values()) <= {"Follower"}
    for address in [node.address for node in cluster.brokers]:
        features = jvm.tool(FEATURES, "--bootstrap-server", address, "describe").ok()
        assert "metadata.version" in features
        told = jvm.tool(CLUSTER, "cluster-id", "--bootstrap-server", address).ok()
        assert kafka.CLUSTER_ID in told
    by_controller = f"127.0.0.1:{cluster.active().controller_port}"
    direct = jvm.tool(QUORUM, "--bootstrap-controller", by_controller, "describe", "--status").ok()
    assert re.search(rf"LeaderId: +{leader}\n", direct)


def add_controller(jvm, cluster: Cluster, node: Node) -> None:
    arguments = ["--bootstrap-server", cluster.bootstrap, "--command-config", str(node.config)]
    jvm.tool(QUORUM, *arguments, "add-controller").ok()


def remove_controller(jvm, cluster: Cluster, node_id: int, directory: str) -> None:
    arguments = ["--controller-id", str(node_id), "--controller-directory-id", directory]
    jvm.tool(QUORUM, "--bootstrap-server", cluster.bootstrap, "remove-controller", *arguments).ok()


@pytest.fixture
def dynamic(make, jvm):
    """Three voters, two of which joined a quorum of one (kraft.version 1)."""
    cluster = make(3, dynamic=True)
    cluster.configure()
    for node in cluster.nodes.values():
        made = node.format("--standalone" if node.id == 1 else "--no-initial-controllers")
        assert made.returncode == 0, made.stdout + made.stderr
        node.launch()
    cluster.wait_complete()
    assert replication(jvm, cluster) == {1: "Leader", 2: "Observer", 3: "Observer"}
    for node_id in (2, 3):
        add_controller(jvm, cluster, cluster.nodes[node_id])
    return cluster


def test_voters_join_and_leave(jvm, dynamic):
    cluster = dynamic
    assert replication(jvm, cluster) == {1: "Leader", 2: "Follower", 3: "Follower"}
    remove_controller(jvm, cluster, 1, directory_id(cluster.nodes[1]))
    eventually(lambda: cluster.active().id != 1, "another leads")
    eventually(lambda: replication(jvm, cluster).get(1) == "Observer", "it goes on as an observer")
    roles = replication(jvm, cluster)
    assert sorted(roles.values()) == ["Follower", "Leader", "Observer"]


def test_a_wiped_voter_comes_back(jvm, dynamic):
    """Without its disk it is another replica: the old one goes, the new one joins."""
    cluster = dynamic
    leader = cluster.active()
    wiped = next(node for node in cluster.controllers if node is not leader)
    lost = directory_id(wiped)
    wiped.kill()
    shutil.rmtree(wiped.directory / "data")
    wiped.launch()
    assert wiped.process is not None
    assert wiped.process.wait(30) != 0
    assert "format" in wiped.said()
    assert wiped.format("--no-initial-controllers").returncode == 0
    wiped.launch()
    cluster.wait_complete()
    assert replication(jvm, cluster)[wiped.id] in ("Follower", "Observer")
    remove_controller(jvm, cluster, wiped.id, lost)
    eventually(lambda: replication(jvm, cluster).get(wiped.id) == "Observer", "an observer")
    add_controller(jvm, cluster, wiped)
    assert replication(jvm, cluster)[wiped.id] == "Follower"


def test_a_wiped_static_voter_says_what_to_do(make):
    cluster = make(3)
    cluster.start()
    wiped = next(node for node in cluster.controllers if node is not cluster.active())
    wiped.kill()
    shutil.rmtree(wiped.directory / "data")
    wiped.launch()
    assert wiped.process is not None
    assert wiped.process.wait(30) == (2 if wiped.kind == "kwire" else 1)
    assert "kwire format --cluster-id" in wiped.said() or wiped.kind == "kafka"


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
