"""Reports of a node's role in the quorum: Kafka's names of its state, and log lines."""

import logging
from random import Random

import pytest
import trio

from kwire import errors
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft import election
from kwire.raftmeta.raft.raft_metrics import (
    STATES,
    is_changing_voters,
    observer_count,
    state_name,
    vote,
)
from kwire.raftmeta.raft.roles import ChangeKind, VoterChange
from kwire.raftmeta.raft.voters import Node, ReplicaKey
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, config_of, voters_of
from tests.support.raftmeta.one_node import follower, leader, node


def test_state_names_are_kafkas() -> None:
    names = [state_name(follower().state), state_name(follower(9).state)]
    raft = node()
    names.append(state_name(raft.state))
    election.become_prospective(raft.state)
    election.become_candidate(raft.state)
    names.append(state_name(raft.state))
    assert vote(raft.state) == 1
    raft = leader()
    names.append(state_name(raft.state))
    election.become_resigned(raft.state, ())
    names.append(state_name(raft.state))
    assert names == [
        "follower",
        "observer",
        "unattached",
        "candidate",
        "leader",
        "unattached-voted",
    ]
    assert set(names) <= set(STATES)
    assert [vote(raft.state), vote(follower().state)] == [1, -1]


def test_only_a_leader_counts_observers_and_voter_changes() -> None:
    raft = leader()
    assert (observer_count(raft.state), is_changing_voters(raft.state)) == (0, False)
    replica = raft.state.role.replicas[ReplicaKey(2)]  # type: ignore[union-attr]
    raft.state.role.replicas[ReplicaKey(9)] = replica  # type: ignore[union-attr]
    replica.fetched_at = raft.state.now
    assert observer_count(raft.state) == 1
    raft.state.role.change = VoterChange("t", ChangeKind.ADD, config_of(9).as_voter, 9.0)  # type: ignore[union-attr]
    assert is_changing_voters(raft.state)
    assert observer_count(follower().state) == 0


class Strangers:
    """Controllers of another cluster."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, node: Node, request: object) -> VoteResponse | FetchResponse:
        self.calls += 1
        await trio.sleep(0.01)
        code = errors.InconsistentClusterId.code
        if isinstance(request, VoteRequest):
            return VoteResponse(error_code=code)
        return FetchResponse(error_code=code)


async def test_controllers_of_another_cluster_are_named_once(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    peers = Strangers()
    quorum = RaftService(
        config_of(1),
        MemoryStorage(),
        clock=TestClock(),
        random=Random(1),
        configured=voters_of(1, 2, 3),
        peers=peers,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert peers.calls > 10
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert sorted(lines) == [
        f"another cluster's controller id={n} address=node-{n}:9093 own cluster=test-cluster; "
        "name only controllers of this cluster in controller.quorum.bootstrap.servers or "
        "controller.quorum.voters, and format new nodes with its id"
        for n in (2, 3)
    ]
