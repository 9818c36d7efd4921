"""Elections of leaders that may lack records, and eligible leader replicas (KIP-966).

Asked of Apache Kafka first; the same tests pass against both.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from compat_tests.cluster.nodes import ELR, FEATURES, Cluster, Node, stop_in_order
from compat_tests.cluster.tools import ELECTION, TOPICS, by_broker
from compat_tests.cluster.topics import (
    isr,
    leader,
    produce,
    producer,
    read,
    segments,
    wait_isr,
    wait_known,
    wait_leaderless,
)
from compat_tests.harness.wait import eventually
from kwire.log.inspection.dump import dump
from kwire.raftmeta.storage.records import unpack

SETTINGS = {
    "broker_session_timeout_ms": "3000",
    "broker_heartbeat_interval_ms": "500",
    "unclean_leader_election_interval_ms": "1000",
}


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, **SETTINGS)
    cluster.start([*FEATURES, ELR])
    return cluster


@pytest.fixture
def cluster_with_elr(make: Callable[..., Cluster]) -> Cluster:
    cluster = make(3, **SETTINGS)
    cluster.start()
    return cluster


def create(jvm, cluster: Cluster, topic: str, replicas: str, **settings: str) -> None:
    arguments = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    more = [part for argument in arguments for part in ("--config", argument)]
    how = by_broker(cluster)
    jvm.tool(
        TOPICS, *how, "--create", "--topic", topic, "--replica-assignment", replicas, *more
    ).ok()
    wait_known(cluster, topic)
    members = {int(node) for node in replicas.split(":")}
    eventually(lambda: isr(cluster, topic) == members, lambda: f"all in sync: {cluster.tails()}")


def recovery_states(node: Node) -> list[int]:
    """Return the recovery states that the changes in a node's metadata log set, in order."""
    folder = node.directory / "data" / "__cluster_metadata-0"
    states: list[int] = []
    for path in sorted(folder.glob("*.log")):
        for line in dump(str(path), records=True, meaning=unpack):
            if "PartitionChangeRecord" in line and "leader_recovery_state=" in line:
                states += [int(n) for n in re.findall(r"leader_recovery_state=(-?\d+)", line)]
    return [state for state in states if state >= 0]


def test_unclean_leader_is_elected_only_where_it_is_allowed(jvm, cluster: Cluster) -> None:
    """Invariant 33; the former leader then drops what the new one lacks."""
    first, second, third = cluster.brokers
    create(jvm, cluster, "safe", "1:2", min_insync_replicas="1")
    create(
        jvm, cluster, "risky", "1:2", min_insync_replicas="1", unclean_leader_election_enable="true"
    )
    client = producer(cluster)
    for topic in ("safe", "risky"):
        assert produce(client, topic, range(10)) == list(range(10))
    second.kill()
    eventually(lambda: isr(cluster, "risky") == isr(cluster, "safe") == {1}, "an ISR of one")
    for topic in ("safe", "risky"):
        assert produce(client, topic, range(10, 20)) == list(range(10, 20))
    first.kill()
    second.launch()
    assert leader(cluster, "risky", other_than=first.id).id == second.id
    wait_isr(cluster, "risky", {second.id})
    wait_leaderless(cluster, "safe", {first.id})
    assert produce(producer(cluster), "risky", range(100, 110)) == list(range(100, 110))
    assert read(cluster, "risky", 20) == [*range(10), *range(100, 110)]
    first.launch()
    for topic in ("safe", "risky"):
        wait_isr(cluster, topic, {1, 2})
    assert read(cluster, "safe", 20) == list(range(20))
    assert read(cluster, "risky", 20) == [*range(10), *range(100, 110)]
    eventually(
        lambda: segments(first, "risky") == segments(second, "risky"),
        "equal replicas",
    )
    # The leader recovers when it is elected, and has recovered when the other replica joins.
    eventually(lambda: recovery_states(third)[-2:] == [1, 0], f"{recovery_states(third)}")


def test_operator_can_elect_an_unclean_leader(jvm, cluster: Cluster) -> None:
    first, second, _ = cluster.brokers
    create(jvm, cluster, "safe", "1:2", min_insync_replicas="1")
    second.kill()
    eventually(lambda: isr(cluster, "safe") == {1}, "an ISR of one")
    assert produce(producer(cluster), "safe", range(10)) == list(range(10))
    first.kill()
    second.launch()
    cluster.wait_complete()
    wait_leaderless(cluster, "safe", {first.id})
    how = ("--election-type", "unclean", "--topic", "safe", "--partition", "0")
    ran = jvm.tool(ELECTION, *by_broker(cluster), *how)
    assert "Successfully completed leader election (UNCLEAN)" in ran.ok()
    assert leader(cluster, "safe", other_than=first.id).id == second.id
    wait_isr(cluster, "safe", {second.id})


def eligible(jvm, cluster: Cluster, topic: str) -> tuple[str, str]:
    """Return the eligible and the last known leader replicas, as the tool prints them."""
    output = jvm.tool(TOPICS, *by_broker(cluster), "--describe", "--topic", topic).ok()
    match = re.search(r"Elr: ?(\S*)\s+LastKnownElr: ?(\S*)", output)
    assert match is not None, output
    return match[1], match[2]


def test_last_replica_that_lost_its_tail_erases_nothing(jvm, cluster_with_elr: Cluster) -> None:
    """Invariant 32: an eligible replica that stopped cleanly leads instead of it."""
    cluster = cluster_with_elr
    last, clean, _ = cluster.brokers
    create(jvm, cluster, "t", "1:2", min_insync_replicas="2")
    assert produce(producer(cluster), "t", range(100)) == list(range(100))
    assert eligible(jvm, cluster, "t") == ("", "")
    stop_in_order(clean)
    eventually(lambda: isr(cluster, "t") == {last.id}, "an ISR of one")
    eventually(lambda: eligible(jvm, cluster, "t") == (str(clean.id), ""), "an eligible replica")
    last.kill()
    for path in (last.directory / "data" / "t-0").glob("*.log"):
        path.write_bytes(b"")  # What a loss of power may do to records that were not flushed.
    last.launch()
    cluster.wait_complete()
    wait_leaderless(cluster, "t", ())
    clean.launch()
    cluster.wait_complete()
    assert leader(cluster, "t").id == clean.id
    assert read(cluster, "t", 100) == list(range(100))
    wait_isr(cluster, "t", {1, 2})
    eventually(lambda: eligible(jvm, cluster, "t") == ("", ""), "no replica is listed as eligible")
    eventually(
        lambda: segments(last, "t") == segments(clean, "t"),
        "equal replicas",
    )


def test_last_known_leader_leads_when_no_replica_is_eligible(
    jvm, cluster_with_elr: Cluster
) -> None:
    """All replicas were killed: the one that led last has the newest records."""
    cluster = cluster_with_elr
    create(jvm, cluster, "t", "1:2", min_insync_replicas="2")
    assert produce(producer(cluster), "t", range(100)) == list(range(100))
    last, other, _ = cluster.brokers
    other.kill()
    eventually(lambda: isr(cluster, "t") == {last.id}, "an ISR of one")
    other.launch()
    # Unclean, so not eligible; it is in sync again by copying.
    wait_isr(cluster, "t", {1, 2})
    for node in (other, last):
        node.kill()
    for node in (other, last):
        node.launch()
    cluster.wait_complete()
    leader(cluster, "t")
    assert read(cluster, "t", 100) == list(range(100))
    wait_isr(cluster, "t", {1, 2})
