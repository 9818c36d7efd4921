"""Controllers with several listeners are reached by the one that this node uses."""

import attrs

from kwire.codec.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import Received, Started
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.roles import Follower
from kwire.raftmeta.raft.voters import (
    CONFIGURED,
    Node,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
)
from simulation.raft.quorums import config_of
from simulation.raft.script import Fixed
from tests.support.raftmeta.one_node import sends


def endpoints(node_id: int, *names: str) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(name, f"{name.lower()}-{node_id}", 9093) for name in names)


def node_speaking_on(listener: str) -> Raft:
    """Node 1 of three; the others name their two listeners each in another order."""
    voters = VoterSet.of(
        Voter(config_of(n).key, endpoints(n, *names))
        for n, names in enumerate((("OLD", "NEW"), ("OLD", "NEW"), ("NEW", "OLD")), 1)
    )
    history = VoterHistory([(CONFIGURED, voters)], [(CONFIGURED, 1)])
    config = attrs.evolve(config_of(1), listener=listener, endpoints=endpoints(1, "OLD", "NEW"))
    raft = Raft(config, Recovered(history=history), Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    return raft


def test_voters_are_reached_by_the_listener_of_the_same_name() -> None:
    """``controller.listener.names`` begins with the listener that a node reaches controllers by."""
    for listener in ("OLD", "NEW"):
        raft = node_speaking_on(listener)
        requests = sends(raft.step(None, raft.deadline, 0), VoteRequest)
        assert {e.node.host for e in requests} == {f"{listener.lower()}-{n}" for n in (2, 3)}


def test_voter_without_that_listener_is_reached_by_its_first() -> None:
    raft = node_speaking_on("OTHER")
    requests = sends(raft.step(None, raft.deadline, 0), VoteRequest)
    assert {e.node.host for e in requests} == {"old-2", "new-3"}


def test_leader_is_followed_to_the_listener_of_the_same_name() -> None:
    raft = node_speaking_on("NEW")
    leader = node_speaking_on("OLD").state
    request = messages.begin_request(leader, config_of(1).key)
    assert isinstance(request, BeginQuorumEpochRequest)
    request.topics[0].partitions[0].leader_id = 2
    request.topics[0].partitions[0].leader_epoch = 3
    raft.step(Received("token", request), 0.1, 0)
    assert isinstance(raft.state.role, Follower)
    assert raft.state.role.leader == Node(2, "new-1", 9093)
