"""Rules of the Raft paper and the KIPs, each checked on one node or a few.

The docstring of a test is the rule in our words with its source.
"""

from typing import Any

import pytest

from kwire.codec.messages.vote import VoteRequest
from kwire.raftmeta.raft import election, messages
from kwire.raftmeta.raft.events import (
    Answered,
    Committed,
    Received,
    Reply,
    SaveElection,
    Send,
    Started,
)
from kwire.raftmeta.raft.log_state import (
    Diverging,
    EpochEnd,
    EpochStart,
    LogState,
    NeedsSnapshot,
    SnapshotId,
    Valid,
)
from kwire.raftmeta.raft.quorum_state import DamagedQuorumState, ElectionState, decode, encode
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.roles import Leader, Resigned, Unattached
from kwire.raftmeta.raft.voters import ReplicaKey, VoterHistory
from simulation.raft.quorums import config_of, directory_of, voters_of
from simulation.raft.script import Fixed, Script
from tests.support.raftmeta.one_node import node, vote


def ask(raft: Raft, request: VoteRequest, now: float = 0.1) -> tuple[Any, list[Any]]:
    effects = raft.step(Received("token", request), now, 0)
    reply = next(e for e in effects if isinstance(e, Reply))
    return reply.response.topics[0].partitions[0], list(effects)  # type: ignore[union-attr]


def test_one_vote_an_epoch_first_come_first_served() -> None:
    """Raft 5.2: a server votes for at most one candidate in a term, the first that asks."""
    raft = node()
    assert ask(raft, vote(2, 1))[0].vote_granted
    assert not ask(raft, vote(3, 1))[0].vote_granted
    assert ask(raft, vote(2, 1))[0].vote_granted  # the same one again: the answer was lost
    assert ask(raft, vote(3, 2))[0].vote_granted


def test_vote_is_saved_before_the_response() -> None:
    """Raft 5.1: current term and vote are on stable storage before a server responds."""
    _, effects = ask(node(), vote(2, 1))
    saved = [e for e in effects if isinstance(e, SaveElection)]
    key = ReplicaKey(2, directory_of(2))
    assert saved[-1].state == ElectionState(1, None, key)
    assert effects.index(saved[-1]) < next(n for n, e in enumerate(effects) if isinstance(e, Reply))


@pytest.mark.parametrize(
    ("last", "granted"),
    [
        ((2, 10), True),  # the same log
        ((2, 11), True),  # same last epoch, longer
        ((3, 5), True),  # a later last epoch wins over length
        ((2, 9), False),  # same last epoch, shorter
        ((1, 50), False),  # longer, but of an earlier epoch
    ],
)
def test_the_voter_denies_its_vote_to_a_log_behind_its_own(
    last: tuple[int, int], granted: bool
) -> None:
    """Raft 5.4.1: the log with the later last term is more up to date; if equal, the longer."""
    log = LogState(0, 10, [EpochStart(2, 0)])
    raft = node(log=log, saved=ElectionState(3))
    assert ask(raft, vote(2, 4, last=last))[0].vote_granted is granted


def test_a_pre_vote_changes_nothing() -> None:
    """KIP-996: granting a pre-vote neither raises the epoch nor uses up the vote."""
    raft = node()
    part, effects = ask(raft, vote(2, 0, pre=True))
    assert part.vote_granted
    assert not [e for e in effects if isinstance(e, SaveElection)]
    assert ask(raft, vote(3, 1))[0].vote_granted


def test_an_old_epoch_is_fenced() -> None:
    """KIP-595: a vote request of an old epoch is answered with FENCED_LEADER_EPOCH and ours."""
    part, _ = ask(node(saved=ElectionState(7)), vote(2, 5))
    assert (part.error_code, part.leader_epoch, part.vote_granted) == (74, 7, False)


def test_vote_request_for_another_directory_id_is_refused() -> None:
    """KIP-853: a request that names another directory id gets INVALID_VOTER_KEY."""
    request = vote(2, 1)
    request.topics[0].partitions[0].voter_directory_id = directory_of(99)
    assert ask(node(), request)[0].error_code == 125


def test_restarted_leader_is_resigned() -> None:
    """KIP-595: a restarted leader must not lead its old epoch again; it announces that."""
    raft = node(saved=ElectionState(4, 1))
    assert isinstance(raft.state.role, Resigned)
    assert raft.state.epoch == 4


def test_the_only_voter_leads_in_its_first_step() -> None:
    """A quorum of one needs no other vote, and commits what is on its own disk."""
    history = VoterHistory([(-1, voters_of(1))])
    raft = Raft(config_of(1), Recovered(history=history), Fixed(0.5))
    effects = raft.step(Started(), 0.0, 0)
    assert isinstance(raft.state.role, Leader)
    assert Committed(1) in effects
    assert not [e for e in effects if isinstance(e, Send)]
    assert raft.deadline == float("inf")


def test_observer_never_becomes_a_candidate() -> None:
    """KIP-595: observers fetch, and take no part in elections."""
    raft = node(9)
    raft.step(None, 60.0, 0)
    assert isinstance(raft.state.role, Unattached)
    assert raft.state.epoch == 0


def test_a_record_of_an_earlier_epoch_is_not_committed_by_counting() -> None:
    """Raft 5.4.2: only log entries of the leader's current term are committed by counting."""
    raft = node(log=LogState(0, 5, [EpochStart(1, 0)]), saved=ElectionState(1))
    election.become_prospective(raft.state)
    election.become_candidate(raft.state)
    election.become_leader(raft.state, frozenset((1, 2)))
    raft.step(None, 0.1, 0)
    for offset, epoch, committed in ((5, 1, None), (6, 2, 6)):
        log = LogState(0, offset, [EpochStart(epoch, 0)])
        follower = node(2, log=log, saved=ElectionState(2))
        raft.step(Received("token", messages.fetch_request(follower.state)), 0.2, 0)
        assert raft.state.high_watermark == committed


def test_voter_set_is_in_force_before_it_is_committed() -> None:
    """KIP-853: replicas use the latest voter set in their log, committed or not."""
    script = Script()
    for line in ("voters dynamic 1", "start 1", "start 2", "deliver", "add 1 2", "cut 1 2"):
        script.run(line)
    script.run("deliver")
    leader = script.nodes[1].state
    assert leader.voters.ids == (1, 2)
    assert leader.high_watermark == leader.history.latest_offset  # needs node 2 from now on


@pytest.mark.parametrize(
    ("offset", "epoch", "validation"),
    [
        (0, 0, Valid()),
        (5, 1, Valid()),
        (10, 3, Valid()),
        (12, 3, Diverging(EpochEnd(3, 10))),  # longer than we are
        (7, 1, Diverging(EpochEnd(1, 5))),  # our epoch 1 ended before that
        (8, 2, Diverging(EpochEnd(1, 5))),  # an epoch we never had
        (10, 9, Diverging(EpochEnd(3, 10))),
    ],
)
def test_leader_answers_where_a_followers_log_diverges(
    offset: int, epoch: int, validation: object
) -> None:
    """KIP-595: the leader answers a divergent fetch with the end of the largest epoch of its
    log that is not after the follower's."""
    log = LogState(0, 10, [EpochStart(1, 0), EpochStart(3, 5)])
    assert log.validate(offset, epoch) == validation


@pytest.mark.parametrize(
    ("offset", "epoch", "validation"),
    [
        (0, 0, NeedsSnapshot(SnapshotId(8, 3))),
        (5, 1, NeedsSnapshot(SnapshotId(8, 3))),  # ends where the log begins, in another epoch
        (5, 2, Valid()),  # exactly the snapshot before the log
        (8, 3, Valid()),
        (9, 3, Valid()),
    ],
)
def test_fetch_before_the_log_start_needs_a_snapshot(
    offset: int, epoch: int, validation: object
) -> None:
    """KIP-630: a fetch before the log's start is answered with the id of the latest snapshot."""
    log = LogState(5, 10, [EpochStart(3, 5)], [SnapshotId(5, 2), SnapshotId(8, 3)])
    assert log.validate(offset, epoch) == validation


# What Apache Kafka 4.3.1 wrote: a single node, a follower of three, one that waits; version 1.
QUORUM_STATES = [
    (
        '{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}',
        ElectionState(1, 1),
        (1,),
        0,
    ),
    (
        '{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}',
        ElectionState(2, 1, ReplicaKey(1)),
        (1, 2, 3),
        0,
    ),
    (
        '{"clusterId":"","leaderId":-1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}',
        ElectionState(3),
        (1, 2, 3),
        0,
    ),
    (
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
        ElectionState(1, 1),
        (1,),
        1,
    ),
]


@pytest.mark.parametrize(("text", "state", "voters", "version"), QUORUM_STATES)
def test_quorum_state_has_kafkas_format(
    text: str, state: ElectionState, voters: tuple[int, ...], version: int
) -> None:
    assert decode(text.encode()) == state
    assert encode(state, voters_of(*voters), version).decode() == text


def test_a_damaged_quorum_state_is_refused() -> None:
    later = QUORUM_STATES[0][0].replace('"data_version":0', '"data_version":2').encode()
    stranger = QUORUM_STATES[3][0].replace("AAAAAAAAAAAAAAAAAAAAAA", "?").encode()
    for damaged in (b"", b"{}", b'{"leaderId":1}', b"\xff\xfe", b"[]", later, stranger):
        with pytest.raises(DamagedQuorumState):
            decode(damaged)


def test_node_that_refused_a_fetch_is_still_asked_for_its_vote() -> None:
    """KIP-595: a voter without a leader fetches from any other, and asks all for their votes when
    its timer runs out; a node that does not lead can still vote.
    """
    raft = node()
    (fetch,) = raft.state.calls.open.values()
    refused = messages.fetch_response(node(fetch.node.id).state, error=6)
    raft.step(Answered(fetch.id, refused), 1.499, 0)
    votes = [e for e in raft.step(None, 1.5, 0) if isinstance(e, Send)]
    assert {e.node.id for e in votes if isinstance(e.request, VoteRequest)} == {2, 3}


def leader_of_epoch_2() -> Raft:
    raft = node(log=LogState(0, 5, [EpochStart(1, 0)]), saved=ElectionState(1))
    raft.state.high_watermark = 5
    election.become_prospective(raft.state)
    election.become_candidate(raft.state)
    election.become_leader(raft.state, frozenset((1, 2)))
    raft.step(None, 0.1, 0)
    return raft


def test_new_leader_sends_no_high_watermark_before_it_advances() -> None:
    """KIP-595: the leader's high watermark is known once its epoch's first record is committed."""
    raft = leader_of_epoch_2()
    for offset, epoch, high_watermark in ((5, 1, -1), (6, 2, 6)):
        follower = node(2, log=LogState(0, offset, [EpochStart(epoch, 0)]), saved=ElectionState(2))
        request = messages.fetch_request(follower.state)
        effects = raft.step(Received(offset, request), 0.2, 0)
        reply = next(e for e in effects if isinstance(e, Reply))
        part = reply.response.responses[0].partitions[0]  # type: ignore[union-attr]
        assert (part.error_code, part.high_watermark) == (0, high_watermark)


def test_error_response_has_no_high_watermark() -> None:
    """KIP-595: NOT_LEADER_OR_FOLLOWER carries the leader's id, not a high watermark."""
    raft = node(saved=ElectionState(1), log=LogState(0, 5, [EpochStart(1, 0)]))
    raft.state.high_watermark = 5
    assert (
        messages.fetch_response(raft.state, error=6).responses[0].partitions[0]
        == (
            messages.fetch_response(node(saved=ElectionState(1)).state, error=6)
            .responses[0]
            .partitions[0]
        )
    )


def test_removed_leader_leads_until_the_removal_is_committed() -> None:
    """KIP-853: the leader that removes itself resigns when the new voter set is committed, and
    the others know that it is.
    """
    script = Script()
    for line in ("voters dynamic 1 2 3", "start 1 2 3", "wait 1.515", "deliver", "remove 1 1"):
        script.run(line)
    leader = script.nodes[1].state
    assert isinstance(leader.role, Leader)
    assert leader.voters.ids == (2, 3)
    transcript = script.run("deliver")
    assert isinstance(leader.role, Resigned)
    assert f"FetchResponse error_code=0 high_watermark={leader.log.end_offset}\n" in transcript
