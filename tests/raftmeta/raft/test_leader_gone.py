"""A leader that has ended is replaced at once; one that only this node cannot reach is not."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from kwire.codec.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.election import on_leader_answer
from kwire.raftmeta.raft.events import Answered, Effect, Received, Reply, Send
from kwire.raftmeta.raft.log_state import LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.roles import Follower, Leader, Prospective
from kwire.raftmeta.raft.voters import VoterHistory
from simulation.raft.quorums import config_of, voters_of
from simulation.raft.script import Fixed

FETCH_TIMEOUT = config_of(1).fetch_timeout_s


def follower(number: int) -> tuple[Raft, int]:
    """A follower of node 1, and its Fetch, which is under way at second 1."""
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    raft = Raft(config_of(number), Recovered(ElectionState(1), LogState(), history), Fixed(0.5))
    leader = Raft(config_of(1), Recovered(ElectionState(1), LogState(), history), Fixed(0.5))
    leader.state.change_role(Leader(0, frozenset((1,))))
    request = messages.begin_request(leader.state, raft.state.voters.key_of(number))
    assert isinstance(request, BeginQuorumEpochRequest)
    effects = raft.step(Received("begin", request), 0.0, 0)
    first = call_of(effects, FetchRequest)
    answer = messages.fetch_response(leader.state)
    answer.responses[0].partitions[0].current_leader.leader_id = 1
    answer.responses[0].partitions[0].current_leader.leader_epoch = 1
    return raft, call_of(raft.step(Answered(first, answer), 1.0, 0), FetchRequest)


def call_of(effects: Iterable[Effect], kind: type) -> int:
    return next(e.call_id for e in effects if isinstance(e, Send) and isinstance(e.request, kind))


def vote_requests(effects: Iterable[Effect]) -> list[tuple[int, bool]]:
    """Return the nodes asked for a vote, each with whether it was a pre-vote."""
    return [
        (e.node.id, e.request.topics[0].partitions[0].pre_vote)
        for e in effects
        if isinstance(e, Send) and isinstance(e.request, VoteRequest)
    ]


def first_pre_vote_time(raft: Raft) -> float:
    """Return the time of the first request for a pre-vote if nothing else happens."""
    while True:
        now = raft.deadline
        assert now < 60
        if (3, True) in vote_requests(raft.step(None, now, 0)) or isinstance(
            raft.state.role, Prospective
        ):
            return now


def test_follower_elects_soon_after_the_leaders_address_refuses_connections() -> None:
    raft, fetch = follower(2)
    raft.step(Answered(fetch, None, refused=True), 1.1, 0)
    assert 1.1 < first_pre_vote_time(raft) < 1.2


def test_lost_connection_alone_starts_no_election() -> None:
    """The leader may be slow, or the network; the fetch timeout decides."""
    raft, fetch = follower(2)
    raft.step(Answered(fetch, None), 1.1, 0)
    assert first_pre_vote_time(raft) == pytest.approx(1 + FETCH_TIMEOUT)


def test_followers_start_their_elections_one_after_the_other() -> None:
    """All lose the leader at the same moment; simultaneous candidates would split the vote."""
    times = []
    for number in (2, 3):
        raft, fetch = follower(number)
        raft.step(Answered(fetch, None, refused=True), 1.1, 0)
        times.append(first_pre_vote_time(raft))
    assert times[1] - times[0] == pytest.approx(0.15)


def test_follower_of_an_ended_leader_grants_pre_votes() -> None:
    raft, fetch = follower(2)
    request = messages.vote_request(raft.state, raft.state.voters.key_of(3), pre_vote=True)
    request.voter_id = 3

    def grants(voter: Raft, now: float) -> bool:
        effects = voter.step(Received("vote", request), now, 0)
        (reply,) = (effect for effect in effects if isinstance(effect, Reply))
        assert isinstance(reply.response, VoteResponse)
        return reply.response.topics[0].partitions[0].vote_granted

    voter, fetch = follower(3)
    assert not grants(voter, 1.05)
    voter.step(Answered(fetch, None, refused=True), 1.1, 0)
    assert grants(voter, 1.11)


def test_refused_pre_votes_are_requested_ever_less_often() -> None:
    """A firewall lies between the leader and this node: the leader still reaches the others."""
    raft, fetch = follower(2)
    voter, _ = follower(3)
    raft.step(Answered(fetch, None, refused=True), 1.1, 0)
    times: list[float] = []
    now = 1.1
    refusal = messages.vote_response(voter.state, granted=False)
    while len(times) < 8:
        now = max(now, raft.deadline)
        effects = raft.step(None, now, 0)
        if (3, True) in vote_requests(effects):
            times.append(now)
        for effect in effects:
            if isinstance(effect, Send) and effect.node.id == 1:
                raft.step(Answered(effect.call_id, None, refused=True), now, 0)
            elif isinstance(effect, Send) and isinstance(effect.request, VoteRequest):
                raft.step(Answered(effect.call_id, refusal), now, 0)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] < 0.3
    assert all(wait > 0.9 * FETCH_TIMEOUT for wait in waits[-3:])
    assert raft.state.epoch == 1


def test_a_leader_that_answers_again_is_followed_again() -> None:
    raft, fetch = follower(2)
    effects = list(raft.step(Answered(fetch, None, refused=True), 1.1, 0))
    role = raft.state.role
    assert isinstance(role, Follower)
    assert role.has_leader_ended
    on_leader_answer(raft.state, role)
    assert not role.has_leader_ended
    assert role.deadline == pytest.approx(1.1 + FETCH_TIMEOUT)
    assert vote_requests(effects) == []


def test_observer_never_becomes_a_candidate() -> None:
    raft, fetch = follower(4)
    raft.step(Answered(fetch, None, refused=True), 1.1, 0)
    for _ in range(50):
        assert vote_requests(raft.step(None, raft.deadline, 0)) == []
    assert raft.state.epoch == 1
