"""The start and shutdown of a raft node."""

from math import inf

from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.election import become_prospective, become_resigned, enter
from kwire.raftmeta.raft.roles import Follower, Leader, Role, Unattached
from kwire.raftmeta.raft.state import RaftState


def on_started(state: RaftState) -> None:
    """Enter the role that the saved election state implies; a sole voter leads at once."""
    assert isinstance(state.role, Unattached), "started before it receives anything"
    own_id = state.config.node_id
    if state.is_voter and state.voters.is_only(state.key):
        become_prospective(state)
        return
    leader_id = state.leader_id
    node = state.voter_node(leader_id) if leader_id is not None else None
    if leader_id == own_id and state.is_voter:
        become_resigned(state, ())
    elif leader_id is not None and leader_id != own_id and node is not None:
        timeout = state.config.fetch_timeout_s
        deadline = state.now + timeout if state.is_voter else inf
        update_at = state.now + timeout if state.config.can_vote else inf
        # The former process may have answered the leader, which counts on this (`may_be_replaced`).
        until = state.now + timeout
        role = Follower(node, deadline, refuse_pre_votes_until=until, update_voter_at=update_at)
        enter(state, role)
    else:
        enter(state, Unattached(state.random_election_timeout() if state.is_voter else inf))


def resign(state: RaftState, epoch: int) -> None:
    """Resign, because the controller cannot continue in this epoch."""
    if isinstance(state.role, Leader) and epoch == state.epoch:
        if state.voters.is_only(state.key):
            become_prospective(state)
        else:
            become_resigned(state, progress.preferred_candidates(state, state.role))


def shut_down(state: RaftState) -> None:
    """Stop taking part in elections; a leader resigns so that others can elect one at once."""
    state.stopping = True
    if isinstance(state.role, Leader) and not state.voters.is_only(state.key):
        become_resigned(state, progress.preferred_candidates(state, state.role))


def update_voter_deadline(state: RaftState, role: Role) -> float:
    """Return when UpdateRaftVoter is due; infinite once it waits for the current Fetch to end."""
    if not isinstance(role, Follower) or role.update_voter_at <= state.now:
        return inf
    return role.update_voter_at
