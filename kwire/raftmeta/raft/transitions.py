"""The legal transitions between the roles of a raft node.

Rules: only :meth:`RaftState.change_role` changes a role, and it rejects transitions that are not in
the table. docs/raft-roles.md is generated from the table. The table matches Apache Kafka's
QuorumState, except that the only voter of a quorum leads without a vote.
"""

from typing import Final, NamedTuple

from kwire.raftmeta.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)


class IllegalTransitionError(Exception):
    """A change of role that is not in the table: a defect in this package."""


class Transition(NamedTuple):
    """A legal change of role."""

    source: type[Role]
    target: type[Role]
    when: str
    kafka: str = ""
    """The difference from Apache Kafka 4.3, if there is one."""


_ALONE: Final = "its only voter becomes Prospective and Candidate on the way"

TRANSITIONS: Final = (
    Transition(Unattached, Unattached, "starts, learns of a later epoch, or grants its vote"),
    Transition(
        Unattached,
        Follower,
        "starts and knows the leader, or learns of the leader of its epoch or a later one",
    ),
    Transition(Unattached, Prospective, "reaches its election timeout"),
    Transition(Unattached, Leader, "is the only voter", _ALONE),
    Transition(Unattached, Resigned, "starts, and led its epoch before it ended"),
    Transition(Follower, Unattached, "learns of a later epoch"),
    Transition(Follower, Follower, "learns of the leader of a later epoch"),
    Transition(Follower, Prospective, "reaches its fetch timeout, or its leader has ended"),
    Transition(Follower, Leader, "is the only voter, once the others are removed", _ALONE),
    Transition(
        Prospective,
        Unattached,
        "learns of a later epoch, grants its vote, or loses and knows no leader",
    ),
    Transition(
        Prospective, Follower, "learns of a leader, or loses and still knows that of its epoch"
    ),
    Transition(Prospective, Candidate, "has a majority of pre-votes"),
    Transition(Candidate, Unattached, "learns of a later epoch"),
    Transition(Candidate, Follower, "learns of the leader of its epoch or a later one"),
    Transition(
        Candidate,
        Prospective,
        "reaches its election timeout, or the end of the back-off after a lost election",
    ),
    Transition(Candidate, Leader, "has a majority of votes"),
    Transition(Leader, Unattached, "learns of a later epoch"),
    Transition(Leader, Follower, "learns of the leader of a later epoch"),
    Transition(
        Leader,
        Leader,
        "resigns as the only voter, and begins another epoch",
        "its only voter is Resigned until its election timeout",
    ),
    Transition(
        Leader, Resigned, "shuts down, lacks a majority that fetches, or is no longer a voter"
    ),
    Transition(Resigned, Unattached, "reaches its election timeout, or learns of a later epoch"),
    Transition(Resigned, Follower, "learns of the leader of a later epoch"),
)
LEGAL: Final = frozenset((transition.source, transition.target) for transition in TRANSITIONS)


def check(source: type[Role], target: type[Role]) -> None:
    """Raise IllegalTransitionError unless the table has this transition."""
    if (source, target) not in LEGAL:
        raise IllegalTransitionError(f"{source.__name__} cannot become {target.__name__}")
