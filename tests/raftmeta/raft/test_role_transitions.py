"""The table of legal transitions between raft roles."""

from itertools import product

import pytest

from kwire.raftmeta.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from kwire.raftmeta.raft.transitions import LEGAL, TRANSITIONS, IllegalTransitionError
from kwire.raftmeta.raft.voters import Node
from tests.support.raftmeta.one_node import follower, node

ROLES: tuple[Role, ...] = (
    Unattached(),
    Follower(Node(2, "node-2", 9093), 0.0),
    Prospective(0.0),
    Candidate(0.0),
    Leader(0, frozenset((1,))),
    Resigned(0.0),
)
STEPS = {
    Unattached: (),
    Follower: (Follower,),
    Prospective: (Prospective,),
    Candidate: (Prospective, Candidate),
    Leader: (Leader,),
    Resigned: (Resigned,),
}
"""The legal ways from Unattached to each role."""


def role_of(kind: type) -> Role:
    return next(role for role in ROLES if type(role) is kind)


@pytest.mark.parametrize(("source", "target"), list(product(STEPS, STEPS)))
def test_only_transitions_of_the_table_are_made(source: type, target: type) -> None:
    state = node().state
    for kind in STEPS[source]:
        state.change_role(role_of(kind))
    before, after = state.role, role_of(target)
    if (source, target) in LEGAL:
        state.change_role(after)
        assert state.role is after
        return
    with pytest.raises(IllegalTransitionError, match=f"{source.__name__} cannot become"):
        state.change_role(after)
    assert state.role is before


def test_follower_that_skips_the_pre_vote_is_refused() -> None:
    """KIP-996: a node becomes a candidate only after a majority of pre-votes."""
    state = follower().state
    with pytest.raises(IllegalTransitionError, match="Follower cannot become Candidate"):
        state.change_role(Candidate(0.0))
    assert isinstance(state.role, Follower)


def test_no_transition_is_listed_twice() -> None:
    assert len(LEGAL) == len(TRANSITIONS)
