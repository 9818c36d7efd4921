"""Votes: requests, grants and counting.

Rules: a node grants at most one vote per epoch, only to a candidate whose log is not behind its
own, and saves the vote before it answers; a pre-vote (KIP-996) changes no state.
"""

from kwire import errors
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.election import (
    LAST_EPOCH,
    become_candidate,
    become_leader,
    become_unattached,
    enter,
    on_leader_ended,
    on_round_lost,
)
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import ReplicaKey
from kwire.types import ZERO_UUID


def on_vote(state: RaftState, request: VoteRequest) -> VoteResponse:
    """Answer a request for this node's vote or pre-vote."""
    error = _refusal(state, request)
    if error is not None:
        return error
    partition = messages.partition_of(request)
    assert partition is not None
    if partition.replica_epoch < state.epoch:
        return messages.vote_response(state, error=errors.FencedLeaderEpoch.code)
    if partition.replica_epoch > state.epoch:
        become_unattached(state, partition.replica_epoch)
    candidate = ReplicaKey(partition.replica_id, partition.replica_directory_id)
    is_current = (partition.last_offset_epoch, partition.last_offset) >= state.log.end
    if partition.pre_vote:
        return messages.vote_response(state, granted=is_current and _would_vote(state))
    granted = is_current and _may_vote(state, candidate)
    if granted and state.election.voted is None:
        state.save(ElectionState(state.epoch, None, candidate))
        enter(state, Unattached(state.random_election_timeout()))
    return messages.vote_response(state, granted=granted)


def _refusal(state: RaftState, request: VoteRequest) -> VoteResponse | None:
    if request.cluster_id not in (None, state.config.cluster_id):
        return VoteResponse(error_code=errors.InconsistentClusterId.code)
    partition = messages.partition_of(request)
    if partition is None:
        return VoteResponse(error_code=errors.InvalidRequest.code)
    newest = partition.replica_epoch if partition.pre_vote else partition.replica_epoch - 1
    if partition.replica_epoch > LAST_EPOCH:
        return messages.vote_response(state, error=errors.InvalidRequest.code)
    if (
        partition.replica_id < 0
        or partition.last_offset < 0
        or not 0 <= partition.last_offset_epoch <= newest
    ):
        return messages.vote_response(state, error=errors.InvalidRequest.code)
    if not is_me(state, request.voter_id, partition.voter_directory_id):
        return messages.vote_response(state, error=errors.InvalidVoterKey.code)
    return None


def is_me(state: RaftState, voter_id: int, directory_id: bytes) -> bool:
    """Return whether a request for this voter is for this node and its disk (KIP-853)."""
    if voter_id not in (-1, state.config.node_id):
        return False
    return directory_id in (ZERO_UUID, state.config.directory_id)


def _would_vote(state: RaftState) -> bool:
    """Return whether to grant a pre-vote: not while the leader answers (KIP-996)."""
    match state.role:
        case Leader():
            return False
        case Follower(refuse_pre_votes_until=refuse_pre_votes_until):
            return state.now >= refuse_pre_votes_until
        case _:
            return True


def _may_vote(state: RaftState, candidate: ReplicaKey) -> bool:
    """Return whether to grant a vote: one per epoch, none if it has a leader (Raft 5.2)."""
    voted = state.election.voted
    if voted is not None:
        unknown = ZERO_UUID in (voted.directory_id, candidate.directory_id)
        return voted == candidate or (unknown and voted.id == candidate.id)
    return state.leader_id is None and isinstance(state.role, Unattached | Prospective)


def on_vote_answer(state: RaftState, node_id: int, response: VoteResponse, *, pre: bool) -> None:
    """Count an answer in the current round."""
    role = state.role
    if not isinstance(role, Prospective if pre else Candidate):
        return
    part = messages.answer_of(response)
    if part is None or part.error_code != errors.NONE:
        state.back_off(node_id)
        return
    assert isinstance(role, Prospective | Candidate)
    (role.ballot.granted if part.vote_granted else role.ballot.rejected).add(node_id)
    _decide(state, role)


def on_refused(state: RaftState, node_id: int) -> None:
    """Start an election soon: nothing listens at the leader's address, so its process has ended.

    If only the connection to the leader is blocked, the other voters deny their pre-votes, because
    the leader still answers them.
    """
    role = state.role
    if isinstance(role, Follower) and role.leader.id == node_id and state.is_voter:
        if not role.has_leader_ended:
            on_leader_ended(
                state, role, state.candidacy_delay_s(node_id) + state.config.retry_backoff_s
            )
    elif (
        isinstance(role, Prospective)
        and role.has_leader_ended
        and role.leader
        and role.leader.id == node_id
    ):
        role.ballot.rejected.add(node_id)
        _decide(state, role)


def _decide(state: RaftState, role: Prospective | Candidate) -> None:
    """End the round if it is won, or can no longer be won."""
    if state.voters.has_majority(role.ballot.granted):
        if isinstance(role, Prospective):
            become_candidate(state)
        else:
            become_leader(state, frozenset(role.ballot.granted))
        return
    undecided = set(state.voters.ids) - role.ballot.rejected
    if not state.voters.has_majority(undecided):
        on_round_lost(state, role)


def ask(state: RaftState) -> None:
    """Request the missing votes; a resigned leader sends EndQuorumEpoch."""
    role = state.role
    if isinstance(role, Resigned):
        _tell_end(state, role)
    if not isinstance(role, Prospective | Candidate):
        return
    if isinstance(role, Candidate) and role.backing_off:
        return
    pre_vote = isinstance(role, Prospective)
    voter_ids = role.ballot.granted | role.ballot.rejected
    for node in state.other_voters:
        if node.id not in voter_ids:
            voter = state.voters.key_of(node.id)
            state.send(node, messages.vote_request(state, voter, pre_vote=pre_vote))


def _tell_end(state: RaftState, role: Resigned) -> None:
    for node in state.other_voters:
        if node.id in role.uninformed:
            state.send(node, messages.end_request(state, role.preferred))
