"""The roles of a raft node, each with the state that only it needs.

A vote in the current epoch is part of the election state, not a role: an Unattached node that
has one is KIP-595's Voted.  Deadlines are monotonic seconds; ``inf`` means never.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TypeAlias

from kwire import attrs
from kwire.raftmeta.raft.held_fetches import HeldFetches
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter


@attrs.define
class Unattached:
    """A node that knows no leader to fetch from; a voter starts an election at ``deadline``."""

    deadline: float = inf


@attrs.define
class SnapshotFetch:
    """The progress of a snapshot that is being fetched."""

    id: SnapshotId
    position: int = 0


@attrs.define
class Follower:
    """A node that fetches from a leader; a voter starts an election at ``deadline``."""

    leader: Node
    deadline: float
    refuse_pre_votes_until: float = -inf
    """The time until which pre-votes are refused, as the leader answered (KIP-996).

    It also applies to a node that does not know yet that it is a voter, and so is no candidate.
    """
    snapshot: SnapshotFetch | None = None
    committed: int | None = None
    """The leader's last known high watermark; this node's log may end before it."""
    update_voter_at: float = inf
    has_leader_ended: bool = False
    """Whether the leader has resigned, or its process has ended."""
    lost_rounds: int = 0
    """Election rounds that this node has lost since then."""


@attrs.define
class Ballot:
    """The votes of one round; a voter answers at most once."""

    granted: set[int] = attrs.field(factory=set)
    rejected: set[int] = attrs.field(factory=set)


@attrs.define
class Prospective:
    """A node that asks for pre-votes, before a new epoch disturbs the others (KIP-996)."""

    deadline: float
    leader: Node | None = None
    ballot: Ballot = attrs.field(factory=Ballot)
    has_leader_ended: bool = False
    """Whether that leader has resigned or ended."""
    lost_rounds: int = 0


@attrs.define
class Candidate:
    """A node that has raised the epoch, voted for itself and asks for votes."""

    deadline: float
    ballot: Ballot = attrs.field(factory=Ballot)
    backing_off: bool = False


@attrs.define
class Replica:
    """A leader's record of a voter or observer."""

    key: ReplicaKey
    end_offset: int = -1
    fetched_at: float = -inf
    fetched_at_ms: int = -1
    answered_at: float = -inf
    """The time of the last answer to a Fetch."""
    followed_at: float = -inf
    """The time of the last answer that was followed by another Fetch, so that it has arrived."""
    caught_up_at_ms: int = -1
    last_end_offset: int = -1
    """The leader's log end offset at this replica's last Fetch."""
    begin_at: float = -inf
    """The time of the next BeginQuorumEpoch."""


@attrs.define
class VoterChange:
    """A change of the voter set in progress: one at a time (Raft, section 4.1 of the thesis)."""

    token: Hashable
    kind: str
    voter: Voter
    deadline: float
    call_id: int | None = None
    offset: int | None = None
    """The offset of its KRAFT_VOTERS record, once written."""


@attrs.define
class Leader:
    """The leader from ``epoch_start`` on; it resigns at ``check_at`` unless a majority fetched."""

    epoch_start: int
    granted: frozenset[int]
    check_at: float = inf
    replicas: dict[ReplicaKey, Replica] = attrs.field(factory=dict)
    """The replicas, the least recent Fetch first."""
    fetching_as: dict[int, ReplicaKey] = attrs.field(factory=dict)
    """The key of each voter's last Fetch."""
    held_fetches: HeldFetches = attrs.field(factory=HeldFetches)
    change: VoterChange | None = None
    is_active: bool = False
    voter_descriptions: dict[int, Voter] = attrs.field(factory=dict)
    """The voters' own descriptions under kraft.version 0, for the upgrade to 1."""


@attrs.define
class Resigned:
    """A leader that resigned; it informs the voters until ``deadline``, then leaves the epoch."""

    deadline: float
    preferred: tuple[ReplicaKey, ...] = ()
    uninformed: set[int] = attrs.field(factory=set)


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned
