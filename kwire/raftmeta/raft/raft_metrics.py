"""A raft node's state in terms of Kafka's raft-metrics; read only."""

from typing import Final

from kwire.raftmeta.raft.describe import observers
from kwire.raftmeta.raft.quorum_state import NO_NODE
from kwire.raftmeta.raft.roles import Candidate, Follower, Leader, Prospective
from kwire.raftmeta.raft.state import RaftState

STATES: Final = (
    "leader",
    "candidate",
    "prospective",
    "prospective-voted",
    "follower",
    "observer",
    "unattached",
    "unattached-voted",
)


def state_name(state: RaftState) -> str:
    """Return one of ``STATES``; a resigned leader counts as unattached: its epoch has no leader."""
    voted = "" if state.election.voted is None else "-voted"
    match state.role:
        case Leader():
            return "leader"
        case Candidate():
            return "candidate"
        case Follower():
            return "follower" if state.is_voter else "observer"
        case Prospective():
            return f"prospective{voted}"
        case _:
            return f"unattached{voted}"


def vote(state: RaftState) -> int:
    """Return the id that this node voted for in its epoch (a leader's own id), or -1 for none."""
    if isinstance(state.role, Leader | Candidate):
        return state.config.node_id
    return NO_NODE if state.election.voted is None else state.election.voted.id


def observer_count(state: RaftState) -> int:
    """Return the number of observers that fetch from this leader."""
    return len(observers(state, state.role)) if isinstance(state.role, Leader) else 0


def is_changing_voters(state: RaftState) -> bool:
    """Return whether this leader is adding, removing or updating a voter."""
    return isinstance(state.role, Leader) and state.role.change is not None
