"""The roles of a raft node, each with what it alone must remember.

A vote in the current epoch is part of the election state, not a role: an Unattached node that
has one is KIP-595's Voted.  Deadlines are monotonic seconds; ``inf`` means never.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TypeAlias

import attrs

from kwire.raftmeta.raft.held_fetches import HeldFetches
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter


@attrs.define
class Unattached:
    """Knows no leader it could fetch from; a voter stands for election at ``deadline``."""

    deadline: float = inf


@attrs.define
class SnapshotFetch:
    """A snapshot on its way in."""

    id: SnapshotId
    position: int = 0


@attrs.define
class Follower:
    """Fetches from a leader; a voter stands for election when nothing came until ``deadline``."""

    leader: Node
    deadline: float
    heard_until: float = -inf
    """Pre-votes are refused until then: the leader answered within the fetch timeout (KIP-996).

    Also of a node that does not know yet that it votes, and so never stands itself.
    """
    snapshot: SnapshotFetch | None = None
    committed: int | None = None
    """The leader's high watermark as told last; this node's log may end before it."""
    update_voter_at: float = inf
    ended: bool = False
    """The leader said that it leads no longer, or its process is gone."""
    lost_rounds: int = 0
    """How often this node has stood in vain since then."""


@attrs.define
class Ballot:
    """Votes for one round; a voter answers at most once."""

    granted: set[int] = attrs.field(factory=set)
    rejected: set[int] = attrs.field(factory=set)


@attrs.define
class Prospective:
    """Asks whether it could win before it disturbs anyone with a new epoch (KIP-996)."""

    deadline: float
    leader: Node | None = None
    ballot: Ballot = attrs.field(factory=Ballot)
    ended: bool = False
    """That leader leads no longer."""
    lost_rounds: int = 0


@attrs.define
class Candidate:
    """Has raised the epoch, voted for itself and asks for votes."""

    deadline: float
    ballot: Ballot = attrs.field(factory=Ballot)
    backing_off: bool = False


@attrs.define
class Replica:
    """A voter or observer as the leader sees it."""

    key: ReplicaKey
    end_offset: int = -1
    fetched_at: float = -inf
    fetched_at_ms: int = -1
    caught_up_at_ms: int = -1
    last_end_offset: int = -1
    """The leader's own log end when this replica last fetched."""
    begin_at: float = -inf
    """When BeginQuorumEpoch is to be sent (again)."""


@attrs.define
class VoterChange:
    """A change of the voter set under way: one at a time (Raft, section 4.1 of the thesis)."""

    token: Hashable
    kind: str
    voter: Voter
    deadline: float
    call_id: int | None = None
    offset: int | None = None
    """Where its KRAFT_VOTERS record stands, once written."""


@attrs.define
class Leader:
    """Leads from ``epoch_start`` on; resigns at ``check_at`` unless a majority fetched."""

    epoch_start: int
    granted: frozenset[int]
    check_at: float = inf
    replicas: dict[ReplicaKey, Replica] = attrs.field(factory=dict)
    """Who fetched least recently comes first."""
    fetching_as: dict[int, ReplicaKey] = attrs.field(factory=dict)
    """The key that each voter fetched under last."""
    held: HeldFetches = attrs.field(factory=HeldFetches)
    change: VoterChange | None = None
    is_active: bool = False
    seen_voters: dict[int, Voter] = attrs.field(factory=dict)
    """What voters said of themselves under kraft.version 0, for the upgrade to 1."""


@attrs.define
class Resigned:
    """Gave up leading this epoch; tells the voters until ``deadline``, then leaves the epoch."""

    deadline: float
    preferred: tuple[ReplicaKey, ...] = ()
    untold: set[int] = attrs.field(factory=set)


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned
