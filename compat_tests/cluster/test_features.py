"""The tool kafka-features: finalized levels, upgrades and downgrades, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.cluster.tools import (
    FEATURES,
    TOPICS,
    add,
    by_broker,
    by_controller,
    directory_id,
    error,
    feature_levels,
    is_added,
    remove,
    replication,
    status,
)
from compat_tests.harness.wait import eventually

DOWNGRADE = "it might delete metadata"
UNSAFE = "Unsafe metadata downgrade is not supported"
UP, DOWN = "upgrade", "downgrade"

REFUSED = [
    ((UP, "--feature", "metadata.version=31"), "only supports versions 7-30"),
    ((UP, "--metadata", "9.9"), "Unknown metadata.version '9.9'"),
    ((DOWN, "--metadata", "4.2-IV1"), DOWNGRADE),
    ((DOWN, "--feature", "metadata.version=29", "--dry-run"), DOWNGRADE),
    ((DOWN, "--feature", "metadata.version=12"), DOWNGRADE),
    ((DOWN, "--unsafe", "--feature", "metadata.version=20"), UNSAFE),
    ((DOWN, "--feature", "metadata.version=6"), "only supports versions 7-30"),
    ((UP, "--feature", "metadata.version=29"), "without setting the upgrade type"),
    ((UP, "--feature", "foo.version=1"), "does not support this feature"),
    ((UP, "--feature", "transaction.version=9"), "only supports versions 0-2"),
    ((UP, "--feature", "metadata.version=-1"), "negative version level"),
    ((UP, "--feature", "metadata.version=x"), "unable to parse x as a short"),
    ((UP,), "at least one feature"),
    ((UP, "--feature", "kraft.version=2"), "only supports versions 0-1"),
    ((UP, "--release-version", "9"), "Unknown metadata.version '9'"),
    ((DOWN, "--release-version", "4.1", "--dry-run"), "Can't downgrade to a newer version"),
    (("disable", "--feature", "metadata.version"), "only supports versions 7-30"),
    (("disable", "--feature", "foo"), "Feature foo not found"),
]


@pytest.fixture
def static(make: Callable[..., Cluster]) -> Cluster:
    """A cluster of three configured voters (kraft.version 0) with the levels of a new kwire."""
    cluster = make(3)
    cluster.start([])
    return cluster


def wait_for_directory_ids(jvm, how: tuple[str, str]) -> None:
    """Wait until every voter has sent its directory id to the leader.

    A voter does that a fetch timeout after it has found the leader.
    """
    attempt = (*how, UP, "--feature", "kraft.version=1", "--dry-run")
    eventually(lambda: jvm.tool(FEATURES, *attempt).code == 0, "every voter has sent its id")


def test_static_quorum(jvm, static):
    """A new static cluster shows Kafka's levels and refuses invalid changes as Kafka does."""
    how = by_broker(static)
    initial = feature_levels(jvm, how)
    assert initial == {
        "eligible.leader.replicas.version": ("0", "1", "1"),
        "group.version": ("0", "1", "1"),
        "kraft.version": ("0", "1", "0"),
        "metadata.version": ("3.3-IV3", "4.3-IV0", "4.3-IV0"),
        "share.version": ("0", "1", "1"),
        "streams.version": ("0", "1", "1"),
        "transaction.version": ("0", "2", "2"),
    }
    for node in static.controllers:
        assert feature_levels(jvm, by_controller(node)) == initial
    wait_for_directory_ids(jvm, how)
    for arguments, why in REFUSED:
        ran = jvm.tool(FEATURES, *how, *arguments)
        assert ran.code == 1, arguments
        assert why in ran.out + ran.err, arguments
    by_active = by_controller(static.active())
    ran = jvm.tool(FEATURES, *by_active, UP, "--feature", "metadata.version=31")
    assert "only supports versions 7-30" in ran.out
    for arguments, text in (
        ((UP, "--metadata", "4.3-IV0"), "metadata.version was upgraded to 30"),
        ((DOWN, "--feature", "kraft.version=0"), "kraft.version was downgraded to 0"),
        (("disable", "--feature", "transaction.version"), "transaction.version was disabled"),
        ((UP, "--feature", "transaction.version=1"), "transaction.version was upgraded to 1"),
        ((UP, "--feature", "transaction.version=2"), "transaction.version was upgraded to 2"),
        (("version-mapping",), "metadata.version=30"),
        (("version-mapping", "--release-version", "4.1"), "metadata.version=27"),
        (("feature-dependencies", "--feature", "transaction.version=2"), "no dependencies"),
    ):
        assert text in jvm.tool(FEATURES, *how, *arguments).ok(), arguments
    eventually(lambda: feature_levels(jvm, how) == initial, "the first levels on a broker")


@pytest.mark.parametrize(
    "name",
    [
        "group.version",
        *(
            pytest.param(f"{name}.version", marks=pytest.mark.long)
            for name in ("eligible.leader.replicas", "share", "streams")
        ),
    ],
)
def test_feature_up_and_down(jvm, static, name):
    """A feature can be upgraded and downgraded; a dry run changes nothing."""
    how = by_broker(static)
    jvm.tool(FEATURES, *how, DOWN, "--feature", f"{name}=0").ok()
    eventually(lambda: feature_levels(jvm, how)[name][2] == "0", "not finalized")
    feature = ("--feature", f"{name}=1")
    assert "can be upgraded" in jvm.tool(FEATURES, *how, UP, *feature, "--dry-run").ok()
    eventually(lambda: feature_levels(jvm, how)[name][2] == "0", "still not finalized")
    jvm.tool(FEATURES, *by_controller(static.active()), UP, *feature).ok()
    eventually(lambda: feature_levels(jvm, how)[name][2] == "1", "finalized")


def test_kraft_version_of_a_running_static_quorum(jvm, static):
    """With unchanged settings the voter set moves into the log, and then it can be changed."""
    how = by_broker(static)
    upgrade = (UP, "--feature", "kraft.version=1")
    other = next(node for node in static.controllers if node is not static.active())
    named = other.id, directory_id(other)
    assert error(add(jvm, how, other)) == "UnsupportedVersionException"
    assert error(remove(jvm, how, *named)) == "UnsupportedVersionException"
    both = (*upgrade, "--feature", "group.version=77")
    assert jvm.tool(FEATURES, *how, *both).code == 1
    wait_for_directory_ids(jvm, how)
    assert feature_levels(jvm, how)["kraft.version"][2] == "0"
    jvm.tool(FEATURES, *how, *upgrade).ok()
    eventually(lambda: feature_levels(jvm, how)["kraft.version"][2] == "1", "finalized")
    voters = status(jvm, static)["CurrentVoters"]
    for node in static.controllers:
        assert directory_id(node) in voters
    ran = jvm.tool(FEATURES, *how, DOWN, "--feature", "kraft.version=0")
    assert "Can't downgrade the version of this feature." in ran.out
    remove(jvm, how, *named).ok()
    eventually(lambda: replication(jvm, static).get(other.id) == "Observer", "an observer")
    eventually(lambda: is_added(jvm, how, other), "added again")
    assert replication(jvm, static)[other.id] in ("Follower", "Leader")
    for node in static.controllers:  # Their files still have controller.quorum.voters.
        node.kill()
    for node in static.controllers:
        node.launch()
    static.wait_complete()
    assert sorted(replication(jvm, static).values()) == ["Follower", "Follower", "Leader"]
    assert feature_levels(jvm, by_broker(static))["kraft.version"][2] == "1"


@pytest.mark.parametrize("release", ["3.3-IV3", "3.9"])
def test_an_older_cluster_is_raised(jvm, make, release):
    """An older cluster is upgraded by steps or at once; features need their metadata.version."""
    cluster = make(1)
    cluster.configure()
    node = cluster.nodes[1]
    run = node.format("--release-version", release)
    assert run.returncode == 0, run.stdout + run.stderr
    node.launch()
    cluster.wait_complete()
    how = by_broker(cluster)
    first = "3.9-IV0" if release == "3.9" else release
    assert feature_levels(jvm, how)["metadata.version"][2] == first
    jvm.tool(TOPICS, *how, "--create", "--topic", "before")
    ran = jvm.tool(FEATURES, *how, UP, "--feature", "eligible.leader.replicas.version=1")
    assert ran.code == 1
    assert "depends on metadata.version level 23" in ran.out
    jvm.tool(FEATURES, *how, UP, "--metadata", "4.0-IV3").ok()
    jvm.tool(FEATURES, *how, UP, "--feature", "eligible.leader.replicas.version=1").ok()
    jvm.tool(FEATURES, *how, UP, "--feature", "metadata.version=30").ok()
    node.stop()
    node.launch()
    cluster.wait_complete()
    upgraded = feature_levels(jvm, how)
    assert upgraded["metadata.version"][2] == "4.3-IV0"
    assert upgraded["eligible.leader.replicas.version"][2] == "1"
    jvm.tool(TOPICS, *how, "--create", "--topic", "after")
    eventually(
        lambda: jvm.tool(TOPICS, *how, "--list").out.split() == ["after", "before"], "both topics"
    )
