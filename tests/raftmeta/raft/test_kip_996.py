"""KIP-996, pre-vote: no node raises the epoch before a majority would vote for it.

The docstring of a test is the rule in our words; `docs/quorum-rules.md` lists them all.
"""

import pytest

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.election import become_candidate, become_prospective
from kwire.raftmeta.raft.events import Answered, Resign, Send
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached
from kwire.raftmeta.raft.voters import ReplicaKey
from tests.support.raftmeta.one_node import (
    answer,
    follower,
    leader,
    node,
    of_epoch_1,
    part,
    say,
    sends,
    vote,
)


def grants_pre_vote(
    raft: Raft, now: float, *, epoch: int = 2, last: tuple[int, int] = (1, 5)
) -> bool:
    """Whether node 3 would get a vote for its pre-vote."""
    response, _ = say(raft, vote(3, epoch, last=last, pre=True), now)
    assert part(response).error_code == 0
    return bool(part(response).vote_granted)


def answer_fetch(raft: Raft, now: float) -> None:
    """Let the leader answer a Fetch."""
    assert isinstance(raft.state.role, Follower)
    leading = raft.state.role.leader.id
    response = messages.fetch_response(follower(epoch=raft.state.epoch, of=leading).state)
    answer(raft, FetchRequest, leading, response, now)


def lose_leader(raft: Raft) -> list[Send]:
    """Let a fetch timeout pass in silence; return the requests for votes that follow."""
    requests: list[Send] = []
    while len(requests) < 2:
        requests += sends(raft.step(None, raft.deadline, 0), VoteRequest)
    assert raft.state.now < 2.2
    return requests


def test_follower_whose_leader_answers_grants_no_pre_vote() -> None:
    """It has fetched successfully: no other leader is needed."""
    raft = follower()
    answer_fetch(raft, 0.1)
    assert not grants_pre_vote(raft, 0.2)


def test_follower_without_an_answer_of_its_leader_grants_a_pre_vote() -> None:
    """A new leader that has not answered yet may be dead."""
    raft = follower()
    begin = messages.begin_request(node(2, saved=ElectionState(3)).state, ReplicaKey(1))
    say(raft, begin, 0.1)
    assert (raft.state.epoch, raft.state.leader_id) == (3, 2)
    assert grants_pre_vote(raft, 0.2, epoch=3)


def test_restarted_follower_grants_no_pre_vote_before_a_fetch_timeout() -> None:
    """The process before may have answered the leader, which then counts on its fetch timeout."""
    raft = follower()
    timeout = raft.state.config.fetch_timeout_s
    assert not grants_pre_vote(raft, 0.9 * timeout)
    raft.step(None, 1.2 * timeout, 0)
    assert grants_pre_vote(raft, 1.2 * timeout)


@pytest.mark.parametrize("end", ["refused", "resigned"])
def test_restarted_follower_grants_a_pre_vote_once_its_leader_has_ended(end: str) -> None:
    """Its leader's process has ended, or it has resigned: it no longer counts on anybody."""
    raft = follower()
    if end == "refused":
        (fetch,) = raft.state.calls.open
        raft.step(Answered(fetch, None, refused=True), 0.1, 0)
    else:
        say(raft, messages.end_request(node(2, saved=ElectionState(2)).state, ()), 0.1)
    assert grants_pre_vote(raft, 0.1)


def test_a_follower_that_lost_its_leader_grants_a_pre_vote() -> None:
    """After the fetch timeout it would vote for another."""
    raft = follower()
    answer_fetch(raft, 0.1)
    raft.step(None, 2.9, 0)
    assert grants_pre_vote(raft, 2.9)


def test_a_leader_grants_no_pre_vote() -> None:
    """The epoch has a leader: the node itself."""
    assert not grants_pre_vote(leader(), 0.2, last=(2, 9))


@pytest.mark.parametrize("role", [Unattached, Prospective, Candidate, Resigned])
def test_node_without_a_leader_grants_a_pre_vote(role: type) -> None:
    """Even if it is a candidate itself, or has voted in this epoch."""
    raft = node(log=of_epoch_1(), saved=ElectionState(2))
    if role is Unattached:
        say(raft, vote(2, 3, last=(1, 5)))
    elif role is Prospective:
        become_prospective(raft.state)
    elif role is Candidate:
        become_prospective(raft.state)
        become_candidate(raft.state)
    else:
        raft = leader()
        raft.step(Resign(2), 0.2, 0)
    assert isinstance(raft.state.role, role)
    assert grants_pre_vote(raft, 0.2, epoch=raft.state.epoch, last=raft.state.log.end)


@pytest.mark.parametrize(("last", "is_granted"), [((1, 4), False), ((1, 5), True), ((2, 1), True)])
def test_a_pre_vote_is_for_a_log_that_is_not_behind(
    last: tuple[int, int], is_granted: bool
) -> None:
    """The log has to be as good as for a vote."""
    raft = node(log=of_epoch_1(), saved=ElectionState(2))
    assert grants_pre_vote(raft, 0.1, last=last) is is_granted


def test_pre_vote_of_a_later_epoch_raises_the_epoch() -> None:
    """The receiver takes over the epoch, and may still vote in it."""
    raft = node(log=of_epoch_1(), saved=ElectionState(2))
    assert grants_pre_vote(raft, 0.1, epoch=5)
    assert raft.state.election == ElectionState(5)


def test_a_pre_vote_of_an_old_epoch_is_fenced() -> None:
    """FENCED_LEADER_EPOCH, as for a vote."""
    response, _ = say(follower(epoch=4), vote(3, 3, last=(1, 5), pre=True))
    assert (part(response).error_code, part(response).vote_granted) == (74, False)


def test_follower_requests_pre_votes_before_it_raises_the_epoch() -> None:
    """After its fetch timeout it asks for pre-votes in its current epoch, and raises the epoch only
    when a majority has granted them.
    """
    raft = follower()
    requests = lose_leader(raft)
    parts = [part(s.request) for s in requests]
    assert [(p.pre_vote, p.replica_epoch) for p in parts] == [(True, 2)] * 2
    assert isinstance(raft.state.role, Prospective)
    assert raft.state.election == ElectionState(2, 2)
    yes = messages.vote_response(node(3, saved=ElectionState(2, 2)).state, granted=True)
    effects = answer(raft, VoteRequest, 3, yes, raft.state.now)
    parts = [part(s.request) for s in sends(effects, VoteRequest)]
    assert {(p.pre_vote, p.replica_epoch) for p in parts} == {(False, 3)}
    assert raft.state.election.epoch == 3


def test_node_that_loses_the_pre_vote_follows_its_leader_again() -> None:
    """Refused by a majority, the node follows the leader it knows in the epoch it was in."""
    raft = follower()
    lose_leader(raft)
    for voter in (2, 3):
        no = messages.vote_response(node(voter, saved=ElectionState(2, 2)).state)
        if isinstance(raft.state.role, Prospective):
            answer(raft, VoteRequest, voter, no, raft.state.now)
    assert isinstance(raft.state.role, Follower)
    assert raft.state.election == ElectionState(2, 2)


def test_a_refusal_that_names_a_leader_of_a_later_epoch_ends_the_round() -> None:
    """A node that learns of a new leader follows it."""
    raft = follower()
    lose_leader(raft)
    no = messages.vote_response(node(2, saved=ElectionState(7, 3)).state)
    answer(raft, VoteRequest, 2, no, raft.state.now)
    assert isinstance(raft.state.role, Follower)
    assert raft.state.election == ElectionState(7, 3)
