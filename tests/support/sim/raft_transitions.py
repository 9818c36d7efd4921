"""The changes of role that simulated raft nodes make, compared with the legal transitions."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kwire.raftmeta.raft.roles import Role
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.transitions import LEGAL

Change = tuple[type[Role], type[Role]]


@contextmanager
def recorded_changes() -> Iterator[set[Change]]:
    """Record the changes of role of all raft nodes inside the context."""
    changes: set[Change] = set()
    original = RaftState.change_role

    def change_role(state: RaftState, role: Role) -> None:
        changes.add((type(state.role), type(role)))
        original(state, role)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaftState, "change_role", change_role)
        yield changes


def missing(changes: set[Change]) -> list[str]:
    """Return the legal transitions that are not among the changes."""
    return sorted(f"{old.__name__} -> {new.__name__}" for old, new in LEGAL - changes)
