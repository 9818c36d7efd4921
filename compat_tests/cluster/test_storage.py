"""Formatting of directories: accepted and refused arguments, and directories of the other tool."""

from __future__ import annotations

import pytest

from compat_tests.cluster.nodes import fresh_id
from compat_tests.cluster.tools import FEATURES, by_broker, directory_id, replication, status
from compat_tests.harness.broker import kafka

S, N = "--standalone", "--no-initial-controllers"

DYNAMIC = [
    ((), False),
    ((S,), True),
    (("-s",), True),
    ((N,), True),
    (("-N",), True),
    ((S, N), False),
    ((S, "-f", "eligible.leader.replicas.version=1"), True),
    ((S, "-f", "foo.version=1"), False),
    ((S, "-f", "transaction.version=9"), False),
    ((S, "-f", "kraft.version=0"), False),
    ((S, "-f", "kraft.version=1"), True),
    ((N, "-f", "kraft.version=1"), True),
    ((S, "--release-version", "4.1"), True),
    ((S, "-r", "9.9"), False),
    ((S, "-r", "3.2"), False),
    ((S, "-r", "4.3", "-f", "metadata.version=29"), False),
    ((S, "-r", "3.9", "-f", "eligible.leader.replicas.version=1"), False),
    ((S, "--feature", "group.version=1"), True),
    ((S, "--add-scram", "SCRAM-SHA-999=[name=a,password=b]"), False),
    (
        (S, "-S", "SCRAM-SHA-256=[name=a,password=b]", "-S", "SCRAM-SHA-512=[name=b,password=c]"),
        True,
    ),
    ((S, "--add-scram", "SCRAM-SHA-256=[name=a,password=b,iterations=4095]"), False),
    ((S, "-r", "3.4", "--add-scram", "SCRAM-SHA-256=[name=a,password=b]"), False),
    (("--initial-controllers", "garbage"), False),
]
STATIC = [
    ((), True),
    ((N,), True),
    ((S,), False),
    (("-f", "kraft.version=1"), False),
    (("-f", "kraft.version=0"), True),
    (("-r", "3.8"), True),
]


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_what_is_taken(make, dynamic):
    for number, (arguments, taken) in enumerate(DYNAMIC if dynamic else STATIC):
        cluster = make(3, dynamic=dynamic)
        cluster.configure()
        ran = cluster.nodes[1].format(*arguments, features=())
        meta = cluster.nodes[1].directory / "data/meta.properties"
        output = f"{number} {arguments}: {ran.stdout}{ran.stderr}"
        assert (ran.returncode == 0) == taken, output
        assert meta.exists() == taken, output


def test_formatted_ones_are_left_alone(make):
    cluster = make(1, dynamic=True)
    cluster.configure()
    node = cluster.nodes[1]
    assert node.format("--standalone").returncode == 0
    before = directory_id(node)
    again = node.format("--standalone")
    assert again.returncode == 1
    assert "already formatted" in again.stdout + again.stderr
    assert node.format("--standalone", "--ignore-formatted").returncode == 0
    assert directory_id(node) == before


def test_initial_controllers(jvm, make):
    """Three initial controllers vote from the start (kraft.version 1); duplicates are refused."""
    cluster = make(3, dynamic=True)
    cluster.configure()
    ids = {node.id: fresh_id() for node in cluster.controllers}
    named = [f"{n.id}@127.0.0.1:{n.controller_port}:{ids[n.id]}" for n in cluster.controllers]
    twice = cluster.nodes[1].format("--initial-controllers", ",".join([*named, named[0]]))
    assert twice.returncode == 1
    assert "more than once" in twice.stdout + twice.stderr
    for node in cluster.nodes.values():
        run = node.format("--initial-controllers", ",".join(named))
        assert run.returncode == 0, run.stdout + run.stderr
        assert directory_id(node) == ids[node.id]
        node.launch()
    cluster.wait_complete()
    assert sorted(replication(jvm, cluster).values()) == ["Follower", "Follower", "Leader"]
    voters = status(jvm, cluster)["CurrentVoters"]
    assert all(voter_id in voters for voter_id in ids.values())
    features = jvm.tool(FEATURES, *by_broker(cluster), "describe").ok()
    assert "kraft.version" in features
    line = next(line for line in features.splitlines() if "kraft.version" in line)
    assert "FinalizedVersionLevel: 1" in line


@pytest.mark.parametrize("how", ["standalone", "static", "older release"])
def test_formatted_by_the_other(jvm, make, broker_kind, how):
    """The node under test serves a directory that the other's tool has formatted."""
    cluster = make(1, dynamic=how != "static")
    cluster.configure()
    node = cluster.nodes[1]
    node.kind = "kafka" if broker_kind == "kwire" else "kwire"
    more = ["--standalone"] if how != "static" else []
    more += ["--release-version", "4.1"] if how == "older release" else []
    run = node.format(*more)
    assert run.returncode == 0, run.stdout + run.stderr
    formatted_id = directory_id(node)
    node.kind = broker_kind
    node.launch()
    cluster.wait_complete()
    assert status(jvm, cluster)["ClusterId"] == kafka.CLUSTER_ID
    if how != "static":
        assert formatted_id in status(jvm, cluster)["CurrentVoters"]
    level = "4.1-IV1" if how == "older release" else "4.3-IV0"
    output = jvm.tool(FEATURES, *by_broker(cluster), "describe").ok()
    line = next(line for line in output.splitlines() if "metadata.version" in line)
    assert f"FinalizedVersionLevel: {level}" in line
