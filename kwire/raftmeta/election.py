"""Elections: who may lead, and how a node moves between roles.

Raft with KIP-595's epochs, KIP-996's pre-vote and the pull-based hints of BeginQuorumEpoch and
EndQuorumEpoch.  Rules: a vote is given once an epoch, only to a log that is not behind ours,
and is saved before it is told; a pre-vote changes nothing.
"""

from math import inf

from kwire import errors
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta import messages
from kwire.raftmeta.quorum_state import ElectionState
from kwire.raftmeta.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from kwire.raftmeta.state import RaftState
from kwire.raftmeta.voters import Node, ReplicaKey
from kwire.types import ZERO_UUID


# Moving between roles -----------------------------------------------------------------------
def _enter(state: RaftState, role: Role) -> None:
    """Leave the present role, whose requests no longer matter, and take another."""
    if isinstance(state.role, Leader):
        from kwire.raftmeta.progress import dismiss_waiting

        old, state.role = state.role, role
        dismiss_waiting(state, old)
    state.role = role
    for kind in (VoteRequest, FetchRequest, FetchSnapshotRequest):
        state.calls.give_up(kind)


def become_unattached(state: RaftState, epoch: int, leader_id: int | None = None) -> None:
    """Wait for a leader of ``epoch``; a timer that runs already goes on running."""
    deadline = inf
    if state.is_voter:
        role = state.role
        if isinstance(role, Leader | Resigned):
            deadline = state.random_election_timeout()
        else:
            deadline = min(role.deadline, state.random_election_timeout())
    if epoch > state.epoch:
        state.save(ElectionState(epoch, leader_id))
    elif leader_id is not None:
        state.save(ElectionState(epoch, leader_id, state.election.voted))
    _enter(state, Unattached(deadline))


def become_follower(state: RaftState, epoch: int, leader: Node) -> None:
    """Fetch from the leader of ``epoch``."""
    assert leader.id != state.config.node_id
    voted = state.election.voted if epoch == state.epoch else None
    if epoch > state.epoch or state.leader_id is None:
        state.calls.succeeded(leader.id)  # whatever it answered before it led
    state.save(ElectionState(epoch, leader.id, voted))
    fetch_timeout = state.config.fetch_timeout
    deadline = state.now + fetch_timeout if state.is_voter else inf
    update_at = state.now + fetch_timeout if state.config.can_vote else inf
    _enter(state, Follower(leader, deadline, update_voter_at=update_at))


def become_prospective(state: RaftState) -> None:
    """Ask the other voters whether they would vote for this node."""
    if state.voters.is_only(state.key):
        become_leader(state, frozenset((state.config.node_id,)))
        return
    leader = state.role.leader if isinstance(state.role, Follower) else None
    role = Prospective(state.random_election_timeout(), leader)
    _enter(state, role)
    role.ballot.granted.add(state.config.node_id)


def become_candidate(state: RaftState) -> None:
    """Raise the epoch, vote for ourselves and ask for votes."""
    state.save(ElectionState(state.epoch + 1, None, state.key))
    role = Candidate(state.random_election_timeout())
    _enter(state, role)
    role.ballot.granted.add(state.config.node_id)


def become_leader(state: RaftState, granted: frozenset[int]) -> None:
    """Lead; the epoch's first record says so and commits what was there before."""
    from kwire.raftmeta import progress

    if isinstance(state.role, Candidate):
        state.save(ElectionState(state.epoch, state.config.node_id, state.election.voted))
    else:
        assert state.voters.is_only(state.key)
        state.save(ElectionState(state.epoch + 1, state.config.node_id))
    role = Leader(state.log.end_offset, granted)
    _enter(state, role)
    progress.start(state, role)


def become_resigned(state: RaftState, preferred: tuple[ReplicaKey, ...]) -> None:
    """Give up leading; the others are told so that one of them stands at once."""
    untold = {node.id for node in state.other_voters}
    _enter(state, Resigned(state.random_election_timeout(), preferred, untold))


def learn(state: RaftState, epoch: int, leader_id: int | None, leader: Node | None) -> None:
    """Another node spoke of an epoch and perhaps its leader: follow what is newer."""
    if epoch < state.epoch or leader_id == state.config.node_id:
        if epoch > state.epoch:  # it was us, before our disk was lost: nobody is left to lead
            become_unattached(state, epoch)
        return
    known = state.leader_id is not None and epoch == state.epoch
    if leader_id is None:
        if epoch > state.epoch:
            become_unattached(state, epoch)
        return
    address = leader or state.voters.node(leader_id)
    if not known or (address is not None and isinstance(state.role, Unattached)):
        assert not known or state.leader_id == leader_id, (state.election, leader_id)
        if address is None:
            become_unattached(state, epoch, leader_id)
        else:
            become_follower(state, epoch, Node(leader_id, address.host, address.port))


# Vote ---------------------------------------------------------------------------------------
def on_vote(state: RaftState, request: VoteRequest) -> VoteResponse:
    """Another node asks for this node's vote, or whether it would get it."""
    error = _refusal(state, request)
    if error is not None:
        return error
    asked = messages.partition_of(request)
    assert asked is not None
    if asked.replica_epoch < state.epoch:
        return messages.vote_response(state, error=errors.FencedLeaderEpoch.code)
    if asked.replica_epoch > state.epoch:
        become_unattached(state, asked.replica_epoch)
    candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
    is_current = (asked.last_offset_epoch, asked.last_offset) >= state.log.end
    if asked.pre_vote:
        return messages.vote_response(state, granted=is_current and _would_vote(state))
    granted = is_current and _may_vote(state, candidate)
    if granted and state.election.voted is None:
        state.save(ElectionState(state.epoch, None, candidate))
        _enter(state, Unattached(state.random_election_timeout()))
    return messages.vote_response(state, granted=granted)


def _refusal(state: RaftState, request: VoteRequest) -> VoteResponse | None:
    if request.cluster_id not in (None, state.config.cluster_id):
        return VoteResponse(error_code=errors.InconsistentClusterId.code)
    asked = messages.partition_of(request)
    if asked is None:
        return VoteResponse(error_code=errors.InvalidRequest.code)
    newest = asked.replica_epoch if asked.pre_vote else asked.replica_epoch - 1
    if asked.replica_id < 0 or asked.last_offset < 0 or not 0 <= asked.last_offset_epoch <= newest:
        return messages.vote_response(state, error=errors.InvalidRequest.code)
    if not is_me(state, request.voter_id, asked.voter_directory_id):
        return messages.vote_response(state, error=errors.InvalidVoterKey.code)
    return None


def is_me(state: RaftState, voter_id: int, directory_id: bytes) -> bool:
    """Whether a request for this voter is for this node and its disk (KIP-853)."""
    if voter_id not in (-1, state.config.node_id):
        return False
    return directory_id in (ZERO_UUID, state.config.directory_id)


def _would_vote(state: RaftState) -> bool:
    """KIP-996: no pre-vote while the leader is heard."""
    match state.role:
        case Leader():
            return False
        case Follower(heard_until=heard_until):
            return state.now >= heard_until
        case _:
            return True


def _may_vote(state: RaftState, candidate: ReplicaKey) -> bool:
    """Raft 5.2: at most one vote an epoch; none in an epoch that has a leader."""
    voted = state.election.voted
    if voted is not None:
        unknown = ZERO_UUID in (voted.directory_id, candidate.directory_id)
        return voted == candidate or (unknown and voted.id == candidate.id)
    return state.leader_id is None and isinstance(state.role, Unattached | Prospective)


def on_vote_answer(state: RaftState, node_id: int, response: VoteResponse, *, pre: bool) -> None:
    """Count an answer of the round that is under way."""
    role = state.role
    if not isinstance(role, Prospective if pre else Candidate):
        return
    part = response.topics[0].partitions[0] if response.topics else None
    if part is None or part.error_code != errors.NONE:
        state.back_off(node_id)
        return
    assert isinstance(role, Prospective | Candidate)
    (role.ballot.granted if part.vote_granted else role.ballot.rejected).add(node_id)
    if state.voters.has_majority(role.ballot.granted):
        if isinstance(role, Prospective):
            become_candidate(state)
        else:
            become_leader(state, frozenset(role.ballot.granted))
        return
    undecided = set(state.voters.ids) - role.ballot.rejected
    if not state.voters.has_majority(undecided):
        _lose(state, role)


def _lose(state: RaftState, role: Prospective | Candidate) -> None:
    if isinstance(role, Candidate):
        if not role.backing_off:
            role.backing_off = True
            wait = state.config.election_backoff_max * state.random.random()
            role.deadline = state.now + wait
        return
    if role.leader is not None and state.leader_id == role.leader.id:
        become_follower(state, state.epoch, role.leader)
    else:
        _enter(state, Unattached(state.random_election_timeout()))


# Timers -------------------------------------------------------------------------------------
def poll(state: RaftState) -> None:
    """Do what the timers of elections demand, and ask for the votes still missing."""
    role = state.role
    if isinstance(role, Leader):
        return
    if state.now >= role.deadline:
        if isinstance(role, Prospective):
            _lose(state, role)
        elif isinstance(role, Resigned):
            become_unattached(state, state.epoch + 1)
        elif state.installing:
            role.deadline = state.now + state.config.fetch_timeout
        elif state.is_voter and not state.stopping:
            become_prospective(state)
        else:
            role.deadline = inf
    _ask(state)
    if isinstance(state.role, Resigned):
        _tell_end(state, state.role)


def _ask(state: RaftState) -> None:
    role = state.role
    if not isinstance(role, Prospective | Candidate):
        return
    if isinstance(role, Candidate) and role.backing_off:
        return
    pre_vote = isinstance(role, Prospective)
    heard = role.ballot.granted | role.ballot.rejected
    for node in state.other_voters:
        if node.id not in heard:
            voter = state.voters.key_of(node.id)
            state.send(node, messages.vote_request(state, voter, pre_vote=pre_vote))


def _tell_end(state: RaftState, role: Resigned) -> None:
    for node in state.other_voters:
        if node.id in role.untold:
            state.send(node, messages.end_request(state, role.preferred))
