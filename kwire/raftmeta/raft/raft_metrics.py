"""A raft node's state in the words of Kafka's raft-metrics; nothing here changes it."""

from typing import Final

from kwire.raftmeta.raft.describe import observers
from kwire.raftmeta.raft.quorum_state import NOBODY
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
    """One of ``STATES``; a leader that resigned is unattached, as nobody leads."""
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
    """Whom this node voted for in its epoch; -1 is nobody. Who leads has its own vote."""
    if isinstance(state.role, Leader | Candidate):
        return state.config.node_id
    return NOBODY if state.election.voted is None else state.election.voted.id


def observer_count(state: RaftState) -> int:
    """How many nodes other than voters fetch from this leader."""
    return len(observers(state, state.role)) if isinstance(state.role, Leader) else 0


def is_changing_voters(state: RaftState) -> bool:
    """Whether this leader is making somebody a voter, or none."""
    return isinstance(state.role, Leader) and state.role.change is not None
