"""Inputs and outputs of the raft state machine: two closed unions of frozen classes.

The contract for performing the effects of a step, or of several steps together:

1. perform the writes (:data:`Write`) in order, resolving each read named by
  ``LogSlice``/``SnapshotSlice`` at its position among them;
2. fsync everything written once, and only then
3. perform the rest in order: send messages and answers, announce commits and leadership.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import attrs

from kwire.errors import KafkaError
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.voters import Node, VoterSet
from kwire.records.build import Payload

if TYPE_CHECKING:  # A quorum of one never sends these messages; their tables stay unread.
    from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
    from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
    from kwire.codec.messages.begin_quorum_epoch import (
        BeginQuorumEpochRequest,
        BeginQuorumEpochResponse,
    )
    from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
    from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
    from kwire.codec.messages.fetch import FetchRequest, FetchResponse
    from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
    from kwire.codec.messages.remove_raft_voter import (
        RemoveRaftVoterRequest,
        RemoveRaftVoterResponse,
    )
    from kwire.codec.messages.update_raft_voter import (
        UpdateRaftVoterRequest,
        UpdateRaftVoterResponse,
    )
    from kwire.codec.messages.vote import VoteRequest, VoteResponse

    RaftRequest: TypeAlias = (
        VoteRequest
        | BeginQuorumEpochRequest
        | EndQuorumEpochRequest
        | FetchRequest
        | FetchSnapshotRequest
        | DescribeQuorumRequest
        | AddRaftVoterRequest
        | RemoveRaftVoterRequest
        | UpdateRaftVoterRequest
    )
    OwnRequest: TypeAlias = (
        VoteRequest
        | BeginQuorumEpochRequest
        | EndQuorumEpochRequest
        | FetchRequest
        | FetchSnapshotRequest
        | UpdateRaftVoterRequest
        | AddRaftVoterRequest
        | RemoveRaftVoterRequest
        | ApiVersionsRequest
    )
    RaftResponse: TypeAlias = (
        VoteResponse
        | BeginQuorumEpochResponse
        | EndQuorumEpochResponse
        | FetchResponse
        | FetchSnapshotResponse
        | DescribeQuorumResponse
        | AddRaftVoterResponse
        | RemoveRaftVoterResponse
        | UpdateRaftVoterResponse
        | ApiVersionsResponse
    )


# Events -------------------------------------------------------------------------------------
@attrs.frozen(repr=False)
class Started:
    """The first event of a state machine."""


class Received(NamedTuple):
    """A request from another node or a tool; the reply carries the same ``token``."""

    token: Hashable
    request: RaftRequest


class Answered(NamedTuple):
    """The answer to a :class:`Send`; None if the request was not delivered or not answered."""

    call_id: int
    response: RaftResponse | None
    refused: bool = False
    """True if the host itself refused the connection: no process listens at that address."""


class Append(NamedTuple):
    """Packed records that the active controller wants to write as one batch."""

    token: Hashable
    epoch: int
    values: tuple[bytes, ...] | Payload
    """The packed records; large decisions encode them beforehand, in slices."""


class SnapshotTaken(NamedTuple):
    """A snapshot of this node's committed records is on disk."""

    id: SnapshotId
    alone: bool = False
    """True if not even the previous snapshot may be kept."""


class SnapshotLoaded(NamedTuple):
    """A fetched snapshot with these voters has been installed."""

    id: SnapshotId
    voters: VoterSet
    kraft_version: int


class SnapshotRefused(NamedTuple):
    """A fetched snapshot arrived damaged and has been removed."""

    id: SnapshotId


class UpgradeKraftVersion(NamedTuple):
    """A request to raise kraft.version: the voter set moves from the configuration to the log."""

    token: Hashable
    version: int


class Resign(NamedTuple):
    """The active controller resigns from the leadership of ``epoch``."""

    epoch: int


@attrs.frozen(repr=False)
class Shutdown:
    """The node is shutting down: a leader resigns and informs the other voters."""


Event: TypeAlias = (
    Started
    | Received
    | Answered
    | Append
    | SnapshotTaken
    | SnapshotLoaded
    | SnapshotRefused
    | UpgradeKraftVersion
    | Resign
    | Shutdown
)


# Placeholders in an answer for bytes that are on disk ---------------------------------------
class LogSlice(NamedTuple):
    """Whole batches from ``start_offset`` up to ``end_offset`` (exclusive); at least one."""

    start_offset: int
    end_offset: int
    max_bytes: int


class SnapshotSlice(NamedTuple):
    """Bytes of a snapshot; the code that reads the snapshot also sets ``size``."""

    id: SnapshotId
    position: int
    max_bytes: int


# Effects ------------------------------------------------------------------------------------
class SaveElection(NamedTuple):
    """Write the quorum-state file."""

    state: ElectionState
    voters: VoterSet
    kraft_version: int


class AppendLog(NamedTuple):
    """Append these batches, whose offsets and epochs are already set."""

    records: bytes | memoryview
    base_offset: int


class TruncateLog(NamedTuple):
    """Truncate the log to end at ``end_offset``."""

    end_offset: int


class CleanLog(NamedTuple):
    """Remove segments and snapshots entirely before ``start_offset``, where a snapshot ends."""

    start_offset: int


class WriteSnapshot(NamedTuple):
    """Write a piece of a snapshot that is being fetched."""

    id: SnapshotId
    position: int
    data: bytes | memoryview


class InstallSnapshot(NamedTuple):
    """Install a complete snapshot and empty the log.

    Report :class:`SnapshotLoaded` afterwards, or :class:`SnapshotRefused` if it is damaged.
    """

    id: SnapshotId


Write: TypeAlias = (
    SaveElection | AppendLog | TruncateLog | CleanLog | WriteSnapshot | InstallSnapshot
)


class Send(NamedTuple):
    """Send a request; :class:`Answered` reports the result."""

    call_id: int
    node: Node
    request: OwnRequest


class Reply(NamedTuple):
    """Answer a received request."""

    token: Hashable
    response: RaftResponse


class Appended(NamedTuple):
    """The records have been assigned their offsets; they are not yet committed."""

    token: Hashable
    base_offset: int
    last_offset: int


class Refused(NamedTuple):
    """The records or the upgrade were rejected."""

    token: Hashable
    error: KafkaError


class Committed(NamedTuple):
    """All records before ``end_offset`` are committed."""

    end_offset: int


class LeaderKnown(NamedTuple):
    """The leader or epoch changed.

    ``active`` becomes true once this node leads and its epoch's first record is committed, so
    everything before that record has been announced.
    """

    leader_id: int | None
    epoch: int
    active: bool = False


Effect: TypeAlias = Write | Send | Reply | Appended | Refused | Committed | LeaderKnown
