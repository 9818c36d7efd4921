"""FetchSnapshot: how a replica gets records that the leader's log no longer has (KIP-630).

Rules: a leader never loads a snapshot; a fetched snapshot is installed whole or not at all; the log
is trimmed only up to the end of one of this node's own snapshots.
"""

from collections.abc import Hashable

from kwire import errors
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.raftmeta.raft import messages, progress
from kwire.raftmeta.raft.election import adopt_epoch_and_leader, on_leader_answer
from kwire.raftmeta.raft.events import (
    InstallSnapshot,
    Reply,
    SnapshotSlice,
    WriteSnapshot,
)
from kwire.raftmeta.raft.leader_view import leader_error
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.roles import Follower, Leader
from kwire.raftmeta.raft.state import Call, RaftState
from kwire.raftmeta.raft.voters import ReplicaKey


def on_request(state: RaftState, token: Hashable, request: FetchSnapshotRequest) -> None:
    """Answer with a piece of a snapshot; check-quorum treats the request like a Fetch."""
    state.emit(Reply(token, _answer(state, request)))


def _answer(state: RaftState, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    if request.cluster_id not in (None, state.config.cluster_id):
        return FetchSnapshotResponse(error_code=errors.InconsistentClusterId.code)
    partition = messages.partition_of(request)
    if partition is None:
        return FetchSnapshotResponse(error_code=errors.InvalidRequest.code)
    snapshot = SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
    error = leader_error(state, partition.current_leader_epoch)
    # Checkpoint 0-0 is never replicated: the log contains what is in it.
    is_found = snapshot.end_offset > 0 and snapshot in state.log.snapshots
    if error == errors.NONE and not is_found:
        error = errors.SnapshotNotFound.code
    if error == errors.NONE and partition.position < 0:
        error = errors.PositionOutOfRange.code
    if error != errors.NONE:
        return messages.snapshot_response(state, snapshot, error=error)
    role = state.role
    assert isinstance(role, Leader)
    if request.replica_id >= 0 and request.replica_id != state.config.node_id:
        key = ReplicaKey(request.replica_id, partition.replica_directory_id)
        replica = progress.replica_of(state, role, key)
        position = (snapshot, partition.position)
        progress.on_fetch_of(state, role, replica, position)
        replica.answered_at, replica.answered = state.world_now, position
    limit = max(1, min(request.max_bytes, state.config.snapshot_max_bytes))
    piece = SnapshotSlice(snapshot, partition.position, limit)
    return messages.snapshot_response(state, snapshot, position=partition.position, piece=piece)


def ask(state: RaftState, role: Follower) -> None:
    """Keep one FetchSnapshot in flight."""
    fetch = role.snapshot
    if fetch is None or state.stopping:
        return
    if any(isinstance(c.request, FetchSnapshotRequest) for c in state.calls.open.values()):
        return
    state.send(role.leader, messages.snapshot_request(state, fetch.id, fetch.position))


def on_answer(state: RaftState, call: Call, response: FetchSnapshotResponse) -> None:
    """Process a piece; if the leader cannot provide it, go back to fetching the log."""
    part = messages.answer_of(response)
    if part is None or response.error_code != errors.NONE:
        state.back_off(call.node.id)
        return
    leader_id = part.current_leader.leader_id
    adopt_epoch_and_leader(
        state,
        part.current_leader.leader_epoch,
        None if leader_id < 0 else leader_id,
        messages.leader_in(response),
    )
    role = state.role
    if not isinstance(role, Follower) or role.snapshot is None or state.installing:
        return
    if part.error_code != errors.NONE:
        role.snapshot = None
        state.back_off(call.node.id)
        return
    state.calls.on_success(call.node.id)
    if part.current_leader.leader_epoch == state.epoch:
        _take(state, role, part)


def _take(
    state: RaftState, role: Follower, part: FetchSnapshotResponse.TopicSnapshot.PartitionSnapshot
) -> None:
    fetch = role.snapshot
    assert fetch is not None
    got = SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch)
    if got != fetch.id or part.position != fetch.position:
        return
    on_leader_answer(state, role)
    data = part.unaligned_records
    if not data and fetch.position < part.size:  # No progress: an immediate retry would not help.
        role.snapshot = None
        state.back_off(role.leader.id)
        return
    state.emit(WriteSnapshot(fetch.id, fetch.position, data))
    fetch.position += len(data)
    if fetch.position >= part.size:
        state.installing = fetch.id
        state.emit(InstallSnapshot(fetch.id))
