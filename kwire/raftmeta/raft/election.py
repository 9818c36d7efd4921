"""Transitions between the roles of a node, and the election timers.

Raft with KIP-595's epochs and KIP-996's pre-vote. Rules: the election state is saved when a role is
entered; while a node only waits, its timer keeps running when the epoch changes, so that other
nodes cannot keep it from ever becoming a candidate.
"""

import logging
from math import inf
from typing import Final

from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from kwire.raftmeta.raft.state import FETCHES, RaftState
from kwire.raftmeta.raft.voters import Node, ReplicaKey

logger = logging.getLogger(__name__)

RETRY_SHARE: Final = 0.1
"""The first delay after a lost round once the leader has ended, relative to the longest one."""
LAST_EPOCH: Final = 2**31 - 2
"""The last valid epoch; a later one is rejected, because no epoch could follow it."""
_MOOT: Final = FETCHES | {"VoteRequest"}
"""Requests whose answers no longer matter in another role."""


# Moving between roles -----------------------------------------------------------------------
def enter(state: RaftState, role: Role) -> None:
    """Leave the current role, dropping its open requests, and enter another role."""
    old = state.role
    state.change_role(role)
    if isinstance(old, Leader) and (old.held_fetches or old.change is not None):
        from kwire.raftmeta.raft.pending_replies import dismiss_all

        dismiss_all(state, old)
    state.calls.give_up(_MOOT)


def become_unattached(state: RaftState, epoch: int, leader_id: int | None = None) -> None:
    """Enter the role without a leader in ``epoch``; a running election timer continues."""
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
    enter(state, Unattached(deadline))


def become_follower(state: RaftState, epoch: int, leader: Node) -> None:
    """Become a follower, which fetches from the leader of ``epoch``."""
    assert leader.id != state.config.node_id
    voted = state.election.voted if epoch == state.epoch else None
    if epoch > state.epoch or state.leader_id is None:
        # Errors from before this node led are no longer relevant.
        state.calls.on_success(leader.id)
    state.save(ElectionState(epoch, leader.id, voted))
    deadline = state.fetch_deadline(leader.id) if state.is_voter else inf
    update_at = state.now + state.config.fetch_timeout_s if state.config.can_vote else inf
    enter(state, Follower(leader, deadline, update_voter_at=update_at))


def become_prospective(state: RaftState) -> None:
    """Enter the role that requests pre-votes from the other voters (KIP-996)."""
    if state.voters.is_only(state.key):
        become_leader(state, frozenset((state.config.node_id,)))
        return
    before = state.role
    role = Prospective(state.random_election_timeout())
    if isinstance(before, Follower):
        role.leader, role.has_leader_ended = before.leader, before.has_leader_ended
        role.lost_rounds = before.lost_rounds
    enter(state, role)
    role.ballot.granted.add(state.config.node_id)


def become_candidate(state: RaftState) -> None:
    """Raise the epoch, vote for this node, and enter the role that requests votes."""
    state.save(ElectionState(state.epoch + 1, None, state.key))
    role = Candidate(state.random_election_timeout())
    enter(state, role)
    role.ballot.granted.add(state.config.node_id)


def become_leader(state: RaftState, granted: frozenset[int]) -> None:
    """Become the leader; the epoch's first record announces it and commits earlier records."""
    if isinstance(state.role, Candidate):
        state.save(ElectionState(state.epoch, state.config.node_id, state.election.voted))
    else:
        assert state.voters.is_only(state.key)
        state.save(ElectionState(state.epoch + 1, state.config.node_id))
    role = Leader(state.log.end_offset, granted)
    enter(state, role)
    progress.start(state, role)


def become_resigned(state: RaftState, preferred: tuple[ReplicaKey, ...]) -> None:
    """Resign: EndQuorumEpoch then lets another voter become a candidate at once."""
    uninformed = {node.id for node in state.other_voters}
    enter(state, Resigned(state.random_election_timeout(), preferred, uninformed))


def contradicts(state: RaftState, epoch: int, leader_id: int) -> bool:
    """Return whether ``leader_id`` cannot be the leader of ``epoch``."""
    if leader_id == state.config.node_id or epoch > LAST_EPOCH:
        return True
    return epoch == state.epoch and state.leader_id not in (None, leader_id)


def adopt_epoch_and_leader(
    state: RaftState, epoch: int, leader_id: int | None, leader: Node | None
) -> None:
    """Adopt the epoch and leader that another node reports, if they are newer."""
    if epoch > LAST_EPOCH:
        return
    if epoch < state.epoch or leader_id == state.config.node_id:
        # This node led the epoch, then lost its disk: now the epoch has no leader.
        if epoch > state.epoch:
            become_unattached(state, epoch)
        return
    has_leader = state.leader_id is not None and epoch == state.epoch
    if leader_id is not None and contradicts(state, epoch, leader_id):
        text = "two leaders in one epoch epoch=%d leader=%s other=%d"
        logger.warning(text, epoch, state.leader_id, leader_id)
        return
    if leader_id is None:
        if epoch > state.epoch:
            become_unattached(state, epoch)
        return
    address = leader or state.voter_node(leader_id)
    role = state.role
    if (
        has_leader
        and leader is not None
        and isinstance(role, Follower)
        and state.now > role.refuse_pre_votes_until
    ):
        role.leader = Node(
            leader_id, leader.host, leader.port
        )  # The current address does not answer.
    if not has_leader or (address is not None and isinstance(state.role, Unattached)):
        if address is None:
            become_unattached(state, epoch, leader_id)
        else:
            become_follower(state, epoch, Node(leader_id, address.host, address.port))


# The end of a round --------------------------------------------------------------------------
def on_round_lost(state: RaftState, role: Prospective | Candidate) -> None:
    """Return to the leader after a lost round, or back off."""
    if isinstance(role, Candidate):
        if not role.backing_off:
            role.backing_off = True
            wait_s = state.config.election_backoff_max_s * state.random.random()
            role.deadline = state.now + wait_s
        return
    if role.leader is not None and state.leader_id == role.leader.id:
        become_follower(state, state.epoch, role.leader)
        if role.has_leader_ended:
            _schedule_next_round(state, role.lost_rounds + 1)
    else:
        enter(state, Unattached(state.random_election_timeout()))


def _schedule_next_round(state: RaftState, lost_rounds: int) -> None:
    """Schedule the next round soon: refusing voters may still follow the leader that has ended."""
    role = state.role
    assert isinstance(role, Follower)
    role.has_leader_ended, role.lost_rounds = True, lost_rounds
    wait_s = state.config.election_backoff_max_s * RETRY_SHARE * (1 << min(lost_rounds - 1, 16))
    wait_s = min(wait_s * (1 + state.random.random()), state.config.fetch_timeout_s)
    role.deadline = state.now + wait_s


# Live and ended leaders ---------------------------------------------------------------------
def on_leader_answer(state: RaftState, role: Follower) -> None:
    """Restart the fetch timeout after the leader's answer; refuse pre-votes until it expires."""
    role.has_leader_ended, role.lost_rounds = False, 0
    role.refuse_pre_votes_until = state.now + state.config.fetch_timeout_s
    if state.is_voter:
        role.deadline = state.fetch_deadline(role.leader.id)


def on_leader_ended(state: RaftState, role: Follower, wait_s: float) -> None:
    """Schedule an election in ``wait_s`` seconds, and grant pre-votes to other voters."""
    role.refuse_pre_votes_until = -inf
    role.has_leader_ended = True
    role.deadline = min(role.deadline, state.now + wait_s)


# Timers -------------------------------------------------------------------------------------
def _start_timer(
    state: RaftState, role: Unattached | Follower | Prospective | Candidate | Resigned
) -> None:
    """Start the election timer of a new voter, which may be the only possible leader."""
    if isinstance(role, Follower):
        role.deadline = state.fetch_deadline(role.leader.id)
    else:
        role.deadline = state.random_election_timeout()


def poll(state: RaftState) -> None:
    """Act on an expired election timer."""
    role = state.role
    if isinstance(role, Leader):
        return
    if role.deadline == inf and state.is_voter and not state.stopping:
        _start_timer(state, role)
    if state.now >= role.deadline:
        if isinstance(role, Prospective):
            on_round_lost(state, role)
        elif isinstance(role, Resigned):
            become_unattached(state, state.epoch + 1)
        elif state.installing:
            role.deadline = state.now + state.config.fetch_timeout_s
        elif state.is_voter and not state.stopping:
            become_prospective(state)
        else:
            role.deadline = inf
