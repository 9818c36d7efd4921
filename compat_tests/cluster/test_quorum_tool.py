"""The tool kafka-metadata-quorum: lag, observers, and every refusal of a voter change."""

from __future__ import annotations

import re
import signal

import pytest

from compat_tests.cluster.nodes import Cluster, Node, fresh_id
from compat_tests.cluster.tools import (
    QUORUM,
    add,
    by_broker,
    by_controller,
    directory_id,
    error,
    is_removed,
    remove,
    replicas,
    replication,
    status,
)
from compat_tests.harness.wait import eventually
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.testing.wire import WireClient
from kwire.types import uuid_bytes


@pytest.fixture
def three(make):
    """A cluster of three initial controllers with long time-outs."""
    cluster = make(3, dynamic=True, controller_quorum_fetch_timeout_ms="20000")
    cluster.start_with_initial_controllers()
    return cluster


def fourth(cluster: Cluster, kind: str) -> Node:
    """Add and format a fourth controller, an observer that is not started."""
    node = cluster.add(4, kind)
    cluster.configure()
    node.prepare("--no-initial-controllers")
    return node


def followers(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.controllers if node is not cluster.active()]


def test_add_and_remove(jvm, three, broker_kind):
    cluster, how = three, by_broker(three)
    node = fourth(cluster, broker_kind)
    own = directory_id(node)
    assert error(add(jvm, how, node)) == "TimeoutException"  # The node is not running.
    node.launch()
    cluster.wait_complete()
    quorum = status(jvm, cluster)
    assert f'"directoryId": "{own}"' in quorum["CurrentObservers"]
    assert own not in quorum["CurrentVoters"]
    for dry in (add(jvm, how, node, "--dry-run"), remove(jvm, how, 4, own, "--dry-run")):
        assert dry.ok().startswith("DRY RUN of ")
    assert error(remove(jvm, how, 4, own)) == "VoterNotFoundException"
    add(jvm, how, node).ok()
    assert replicas(jvm, cluster)[4, own][0] == "Follower"
    assert error(add(jvm, how, node)) == "DuplicateVoterException"
    assert error(remove(jvm, how, 4, fresh_id())) == "VoterNotFoundException"
    assert error(remove(jvm, how, 9, own)) == "VoterNotFoundException"
    assert "Failed to parse" in remove(jvm, how, 4, "xx").err
    assert "Invalid negative" in remove(jvm, how, -1, own).err
    assert remove(jvm, how, 4, "").code == 1
    assert "must supply the configuration file" in jvm.tool(QUORUM, *how, "add-controller").err
    by_follower = by_controller(followers(cluster)[0])  # The tool finds the leader by itself.
    remove(jvm, by_follower, 4, own).ok()
    eventually(lambda: replication(jvm, cluster).get(4) == "Observer", "an observer again")
    add(jvm, by_controller(cluster.active()), node).ok()
    assert replication(jvm, cluster)[4] == "Follower"


def test_the_leader_is_removed(jvm, three):
    """After the removal of its leader, a quorum of three goes on as two with another leader."""
    cluster = three
    leader = cluster.active()
    remove(jvm, by_broker(cluster), leader.id, directory_id(leader)).ok()
    eventually(lambda: cluster.active() is not leader, "another leads")
    eventually(lambda: replication(jvm, cluster).get(leader.id) == "Observer", "an observer")
    assert sorted(replication(jvm, cluster).values()) == ["Follower", "Leader", "Observer"]


def test_lag(jvm, three):
    """A paused follower falls behind in both forms of the tool's output, and catches up."""
    cluster = three
    paused = followers(cluster)[0]
    assert paused.process is not None
    paused.process.send_signal(signal.SIGSTOP)
    active = by_controller(cluster.active())

    def row(*more: str) -> list[str]:
        output = jvm.tool(QUORUM, *active, "describe", "--replication", *more).ok()
        cells = (re.split(r"\s{2,}|\t", line.strip()) for line in output.splitlines())
        return next(
            [c for c in row_cells if c] for row_cells in cells if row_cells[0] == str(paused.id)
        )

    eventually(lambda: int(row()[3]) > 0, "it lags")
    assert row()[-1] == "Follower"
    assert re.fullmatch(r"\d+ ms ago", row("--human-readable")[4])
    totals = jvm.tool(QUORUM, *active, "describe", "--status").ok()
    for name in ("MaxFollowerLag", "MaxFollowerLagTimeMs"):
        match = re.search(rf"{name}: +(\d+)", totals)
        assert match is not None
        assert int(match[1]) > 0
    ran = jvm.tool(QUORUM, *active, "describe", "--status", "--human-readable")
    assert ran.code == 1
    paused.process.send_signal(signal.SIGCONT)
    eventually(lambda: int(row()[3]) == 0, "it has caught up")


def test_one_change_at_a_time(jvm, three, broker_kind):
    """While one voter change is uncommitted, another is refused at once with TimeoutException."""
    cluster = three
    node = fourth(cluster, broker_kind)
    node.launch()
    cluster.wait_complete()
    active = cluster.active()
    paused = [controller for controller in cluster.controllers if controller not in (active, node)]
    how, lost = by_controller(active), directory_id(paused[0])
    for controller in paused:
        controller.process.send_signal(signal.SIGSTOP)
    assert append_voter(active, node) == 0
    assert error(remove(jvm, how, paused[0].id, lost)) == "TimeoutException"
    for controller in paused:
        controller.process.send_signal(signal.SIGCONT)
    eventually(lambda: replication(jvm, cluster).get(4) in ("Follower", "Leader"), "it joined")
    eventually(  # The new voter is shown before its record is committed.
        lambda: is_removed(jvm, by_broker(cluster), paused[0].id, lost), "the next change"
    )


def append_voter(active: Node, node: Node) -> int:
    """Add a voter; return the error code once it is in the leader's log, committed or not."""
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=30_000,
        voter_id=node.id,
        voter_directory_id=uuid_bytes(directory_id(node)),
        listeners=[
            AddRaftVoterRequest.Listener(
                name="CONTROLLER", host="127.0.0.1", port=node.controller_port
            )
        ],
        ack_when_committed=False,
    )
    with WireClient("127.0.0.1", active.controller_port, timeout_s=60.0) as client:
        return client.call(request, 1).error_code
