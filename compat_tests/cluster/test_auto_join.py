"""controller.quorum.auto.join.enable: controllers that add themselves to the voters."""

from __future__ import annotations

import shutil

import pytest

from compat_tests.cluster.nodes import CONTROLLER, Cluster
from compat_tests.cluster.tools import by_broker, directory_id, replicas
from compat_tests.harness.wait import eventually


def roles(jvm, cluster: Cluster) -> dict[tuple[int, str], str]:
    return {key: role for key, (role, _) in replicas(jvm, cluster).items()}


def voters(jvm, cluster: Cluster) -> set[tuple[int, str]]:
    return {key for key, role in roles(jvm, cluster).items() if role != "Observer"}


def test_controllers_join_by_themselves(jvm, make, broker_kind):
    """Two observers become voters; a voter that lost its disk replaces its old directory id."""
    cluster = make(1, dynamic=True, controller_quorum_auto_join_enable="true")
    for node_id in (2, 3):
        cluster.add(node_id, broker_kind, CONTROLLER)
    cluster.start_standalone()
    expected = {(node.id, directory_id(node)) for node in cluster.nodes.values()}
    eventually(lambda: voters(jvm, cluster) == expected, f"all vote: {expected}")
    wiped = cluster.nodes[3]
    lost = directory_id(wiped)
    wiped.kill()
    shutil.rmtree(wiped.directory / "data")
    wiped.prepare("--no-initial-controllers")
    assert directory_id(wiped) != lost
    wiped.launch()
    expected = {(node.id, directory_id(node)) for node in cluster.nodes.values()}
    eventually(lambda: voters(jvm, cluster) == expected, f"it votes again: {expected}")


def test_who_does_not_ask_stays_an_observer(jvm, make, broker_kind):
    cluster = make(1, dynamic=True)
    cluster.add(2, broker_kind, CONTROLLER)
    joins = cluster.add(3, broker_kind, CONTROLLER)
    cluster.configure()
    with joins.config.open("a") as file:
        file.write("controller.quorum.auto.join.enable=true\n")
    cluster.start_standalone()
    assert by_broker(cluster)
    named = {n.id: (n.id, directory_id(n)) for n in cluster.nodes.values()}
    eventually(lambda: voters(jvm, cluster) == {named[1], named[3]}, "one joins")
    eventually(lambda: roles(jvm, cluster).get(named[2]) == "Observer", "the other observes")
    assert voters(jvm, cluster) == {named[1], named[3]}


@pytest.mark.with_apache
def test_a_quorum_of_the_other_kind_is_joined(jvm, make, broker_kind):
    cluster = make(0, dynamic=True, controller_quorum_auto_join_enable="true")
    cluster.add(1, "kafka" if broker_kind == "kwire" else "kwire")
    cluster.add(2, broker_kind, CONTROLLER)
    cluster.start_standalone()
    expected = {(node.id, directory_id(node)) for node in cluster.nodes.values()}
    eventually(lambda: voters(jvm, cluster) == expected, f"both vote: {expected}")
