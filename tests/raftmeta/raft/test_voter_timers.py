"""Requests by which a node becomes a voter or describes itself are repeated until they succeed.

UpdateRaftVoter and AddRaftVoter share a timer of the follower; an epoch may last for months, so
nothing may stop it for the rest of the epoch.
"""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import Effect, InstallSnapshot, Send, SnapshotLoaded
from kwire.raftmeta.raft.log_state import LogState, NeedsSnapshot, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint
from simulation.raft.quorums import directory_of, voters_of
from tests.support.raftmeta.one_node import answer, dynamic, follower, node, part, say, sends

STEP_S = 0.5
"""The time that the leader takes for each answer."""
SNAPSHOT = SnapshotId(8, 1)
Answer = Callable[[Raft, Send, float], Any]


def run(raft: Raft, until_s: float, answers: dict[type, Answer]) -> list[tuple[float, Send]]:
    """Answer a node's requests after a while; return all requests with their times.

    A request without an entry in ``answers`` is lost.
    """
    sent: list[tuple[float, Send]] = []
    now = raft.state.now + 0.1
    open_sends = [Send(c.id, c.node, c.request) for c in raft.state.calls.open.values()]
    while now < until_s:
        effects: list[Effect] = list(raft.step(None, now, 0))
        for send in open_sends:
            make = answers.get(type(send.request), lambda *_: None)
            response = make(raft, send, now)
            effects += answer(raft, type(send.request), send.node.id, response, now)
        if any(isinstance(effect, InstallSnapshot) for effect in effects):
            loaded = SnapshotLoaded(SNAPSHOT, dynamic(2, 3), 1)
            effects += raft.step(loaded, now, 0)
        open_sends = sends(effects)
        sent += [(now, send) for send in open_sends]
        now += STEP_S
    return sent


def of_kind(sent: list[tuple[float, Send]], kind: type) -> list[float]:
    return [at for at, send in sent if isinstance(send.request, kind)]


def nothing_new(raft: Raft, send: Send, now: float) -> Any:
    return messages.fetch_response(follower().state)


def unknown_voter(kraft_version: int) -> Raft:
    """Return a voter that its leader does not know as it is."""
    moved = Voter(ReplicaKey(1, directory_of(1)), (VoterEndpoint("CONTROLLER", "elsewhere", 1),))
    voters = dynamic(2, 3).with_voter(moved) if kraft_version else voters_of(1, 2, 3)
    return follower(voters=voters, kraft_version=kraft_version)


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_lost_update_raft_voter_is_repeated(kraft_version: int) -> None:
    """Otherwise other nodes would not know the address of a voter that has moved, or the leader its
    directory id, until the next election.
    """
    sent = run(unknown_voter(kraft_version), 20, {FetchRequest: nothing_new})
    assert len(of_kind(sent, UpdateRaftVoterRequest)) >= 3


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_accepted_update_raft_voter_is_not_repeated(kraft_version: int) -> None:
    """A leader may take long to commit the change, or write the addresses in another order."""
    answers: dict[type, Answer] = {
        FetchRequest: nothing_new,
        UpdateRaftVoterRequest: lambda *_: UpdateRaftVoterResponse(error_code=errors.NONE),
    }
    sent = run(unknown_voter(kraft_version), 20, answers)
    assert len(of_kind(sent, UpdateRaftVoterRequest)) == 1


def test_answer_of_a_former_leader_does_not_count_for_the_next_one() -> None:
    """The next leader does not know what this voter told the former one below kraft.version 1."""
    raft = follower()
    run(raft, 2.6, {FetchRequest: nothing_new})
    begin = messages.begin_request(node(3, saved=ElectionState(3)).state, ReplicaKey(1))
    say(raft, begin, 2.7)
    accepted = UpdateRaftVoterResponse(error_code=errors.NONE)
    answer(raft, UpdateRaftVoterRequest, 2, accepted, 2.8)
    sent = run(
        raft, 10, {FetchRequest: lambda *_: messages.fetch_response(follower(epoch=3, of=3).state)}
    )
    assert {
        send.node.id for _, send in sent if isinstance(send.request, UpdateRaftVoterRequest)
    } == {3}


def joining() -> Raft:
    """Return a controller that is no voter and joins by itself; its log is empty."""
    raft = node(4, voters=dynamic(2, 3), log=LogState(), saved=follower().state.election)
    raft.state.config = attrs.evolve(raft.state.config, auto_join=True)
    return raft


def test_controller_joins_even_if_its_first_snapshot_takes_long() -> None:
    """A large snapshot takes longer than the fetch timeout, and shows only at its end that voters
    can be added.
    """
    raft = joining()
    pieces = 8

    def offer_snapshot(raft: Raft, send: Send, now: float) -> Any:
        if raft.state.log.end_offset:
            return nothing_new(raft, send, now)
        return messages.fetch_response(follower().state, validation=NeedsSnapshot(SNAPSHOT))

    def piece(raft: Raft, send: Send, now: float) -> Any:
        position = part(send.request).position
        response = messages.snapshot_response(
            follower().state, SNAPSHOT, position=position, piece=b"x"
        )
        part(response).size = pieces
        return response

    sent = run(raft, 20, {FetchRequest: offer_snapshot, FetchSnapshotRequest: piece})
    assert len(of_kind(sent, FetchSnapshotRequest)) == pieces
    assert of_kind(sent, AddRaftVoterRequest)
