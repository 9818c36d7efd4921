"""The roles of a raft node, each with the state that only it needs.

A vote in the current epoch is part of the election state, not a role: an Unattached node that has
voted is in KIP-595's Voted state. Deadlines are monotonic seconds; ``inf`` means never.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from math import inf
from typing import TypeAlias

import attrs

from kwire.raftmeta.raft.held_fetches import HeldFetches
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter


@attrs.define(eq=False, repr=False)
class Unattached:
    """A node that knows of no leader to fetch from; a voter starts an election at ``deadline``."""

    deadline: float = inf


@attrs.define(eq=False, repr=False)
class SnapshotFetch:
    """The progress of fetching a snapshot."""

    id: SnapshotId
    position: int = 0


@attrs.define(eq=False, repr=False)
class Follower:
    """A node that fetches from a leader; a voter starts an election at ``deadline``."""

    leader: Node
    deadline: float
    refuse_pre_votes_until: float = -inf
    """The time until which pre-votes are refused, because the leader has answered (KIP-996).

    This also applies to a node that does not yet know that it is a voter, and so cannot be a
    candidate.
    """
    snapshot: SnapshotFetch | None = None
    committed: int | None = None
    """The leader's last known high watermark; this node's log may end before it."""
    update_voter_at: float = inf
    """The time from which UpdateRaftVoter or, before this node votes, AddRaftVoter may be sent."""
    is_described: bool = False
    """True if the leader has accepted this voter's description of itself in this epoch."""
    has_leader_ended: bool = False
    """True if the leader has resigned, or its process has ended."""
    lost_rounds: int = 0
    """The number of election rounds that this node has lost since the leader ended."""


@attrs.define(eq=False, repr=False)
class Ballot:
    """The votes of one round; each voter answers at most once."""

    granted: set[int] = attrs.field(factory=set)
    rejected: set[int] = attrs.field(factory=set)


@attrs.define(eq=False, repr=False)
class Prospective:
    """A node that requests pre-votes, before a new epoch could disturb other nodes (KIP-996)."""

    deadline: float
    leader: Node | None = None
    ballot: Ballot = attrs.field(factory=Ballot)
    has_leader_ended: bool = False
    """True if ``leader`` has resigned or its process has ended."""
    lost_rounds: int = 0


@attrs.define(eq=False, repr=False)
class Candidate:
    """A node that has raised the epoch and voted for itself, and now requests votes."""

    deadline: float
    ballot: Ballot = attrs.field(factory=Ballot)
    backing_off: bool = False


@attrs.define(eq=False)
class Replica:
    """A leader's record of a voter or an observer."""

    key: ReplicaKey
    end_offset: int = -1
    fetched_at: float = -inf
    fetched_at_ms: int = -1
    answered_at: float = -inf
    """The time of the last answer to a Fetch, on the clock of ``RaftState.world_now``."""
    followed_at: float = -inf
    """The time of the last answer known to have arrived, because another Fetch followed it."""
    answered: tuple[Hashable, int] | None = None
    """The position of the request that was answered last, if the answer moves it.

    Another request for this position was sent before that answer arrived.
    """
    caught_up_at_ms: int = -1
    last_end_offset: int = -1
    """The leader's log end offset at this replica's last Fetch."""
    begin_at: float = -inf
    """The time of the next BeginQuorumEpoch."""


class ChangeKind(Enum):
    """The kinds of a voter change, which differ in when its request is answered."""

    ADD = auto()
    """Answered once the addition is committed."""
    ADD_TO_LOG = auto()
    """Answered once it is in the leader's log: a node that adds itself has to fetch then."""
    REMOVE = auto()
    """Answered once the removal is committed."""
    UPDATE = auto()
    """Answered once the update is in the leader's log."""


@attrs.define(eq=False, repr=False)
class VoterChange:
    """A voter change in progress; only one at a time (Raft, section 4.1 of the thesis)."""

    token: Hashable
    kind: ChangeKind
    voter: Voter
    deadline: float
    call_id: int | None = None
    offset: int | None = None
    """The offset of its KRAFT_VOTERS record, once written."""


@attrs.define(eq=False, repr=False)
class Leader:
    """The leader since ``epoch_start``; resigns at ``check_at`` unless a majority has fetched."""

    epoch_start: int
    granted: frozenset[int]
    check_at: float = inf
    replicas: dict[ReplicaKey, Replica] = attrs.field(factory=dict)
    """The replicas, least recent Fetch first."""
    fetching_as: dict[int, ReplicaKey] = attrs.field(factory=dict)
    """The key in each voter's last Fetch."""
    held_fetches: HeldFetches = attrs.field(factory=HeldFetches)
    change: VoterChange | None = None
    is_active: bool = False
    voter_descriptions: dict[int, Voter] = attrs.field(factory=dict)
    """The voters' descriptions of themselves under kraft.version 0, for the upgrade to 1."""


@attrs.define(eq=False, repr=False)
class Resigned:
    """A resigned leader; it informs the voters until ``deadline``, then leaves the epoch."""

    deadline: float
    preferred: tuple[ReplicaKey, ...] = ()
    uninformed: set[int] = attrs.field(factory=set)


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned
