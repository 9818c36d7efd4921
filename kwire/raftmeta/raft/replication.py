"""Fetch: replication of the log from the leader to all other nodes.

Rules: a Fetch at an offset promises that everything before the offset is on the sender's disk, so
it is sent after the fsync. A log that diverges from the leader's is truncated where the leader's
answer says, but never below the high watermark. Damaged records are rejected and fetched again.
"""

import logging
from collections.abc import Hashable
from typing import TypeAlias

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest
from kwire.codec.primitives import MalformedError
from kwire.raftmeta.raft import messages, progress
from kwire.raftmeta.raft.control_records import note_voters
from kwire.raftmeta.raft.election import adopt_epoch_and_leader, on_leader_answer
from kwire.raftmeta.raft.events import LogSlice, Reply, TruncateLog
from kwire.raftmeta.raft.held_fetches import HeldFetch
from kwire.raftmeta.raft.leader_view import leader_error, own_high_watermark
from kwire.raftmeta.raft.log_state import SnapshotId, Valid
from kwire.raftmeta.raft.roles import (
    Follower,
    Leader,
    SnapshotFetch,
    Unattached,
)
from kwire.raftmeta.raft.state import Call, RaftState
from kwire.raftmeta.raft.voters import Node, ReplicaKey, VoterHistory
from kwire.records.header import crc_ok, headers

logger = logging.getLogger(__name__)

_ONE_AT_A_TIME = (
    FetchRequest,
    UpdateRaftVoterRequest,
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
)

Part: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData


# The leader's side --------------------------------------------------------------------------
def on_fetch(state: RaftState, token: Hashable, request: FetchRequest) -> None:
    """Answer now, or hold the request until there is something to return."""
    answer = _refusal(state, request)
    if answer is not None:
        state.emit(Reply(token, answer))
        return
    role = state.role
    assert isinstance(role, Leader)
    wait = max(request.max_wait_ms, 0) / 1000
    fetch = HeldFetch(token, request, state.now + wait, state.world_now)
    _note_progress(state, role, request)
    response = _answer(state, request, {}, is_last=wait == 0)
    if response is None:
        role.held_fetches.add(fetch)
    else:
        _reply(state, role, fetch, response)


def _reply(state: RaftState, role: Leader, fetch: HeldFetch, response: FetchResponse) -> None:
    state.emit(Reply(fetch.token, response))
    replica = role.replicas.get(_sender(fetch.request))
    if replica is not None and role.fetching_as.get(replica.key.id) == replica.key:
        replica.answered_at = state.world_now
        moves = _has_content(response, fetch.request) or not _is_prompt(state, fetch)
        replica.answered = _position(fetch.request) if moves else None


def _has_content(response: FetchResponse, request: FetchRequest) -> bool:
    """Return whether the sender's next Fetch will be for another position."""
    part, partition = messages.answer_of(response), messages.partition_of(request)
    assert part is not None
    assert partition is not None
    return (
        bool(part.records)
        or part.diverging_epoch.epoch >= 0
        or part.snapshot_id.end_offset >= 0
        or part.high_watermark > partition.high_watermark
    )


def _is_prompt(state: RaftState, fetch: HeldFetch) -> bool:
    """Return whether a Fetch is answered before its sender gives it up and sends another."""
    return state.world_now < fetch.received_at + 2 * fetch.request.max_wait_ms / 1000


def _refusal(state: RaftState, request: FetchRequest) -> FetchResponse | None:
    if request.cluster_id not in (None, state.config.cluster_id):
        return FetchResponse(error_code=errors.InconsistentClusterId.code)
    partition = messages.partition_of(request)
    if partition is None or partition.fetch_offset < 0 or partition.last_fetched_epoch < 0:
        return FetchResponse(error_code=errors.InvalidRequest.code)
    error = leader_error(state, partition.current_leader_epoch)
    return None if error == errors.NONE else messages.fetch_response(state, error=error)


def _note_progress(state: RaftState, role: Leader, request: FetchRequest) -> None:
    """Record that the sender has all records before its fetch offset, if its log is a prefix."""
    partition = messages.partition_of(request)
    assert partition is not None
    key = _sender(request)
    if key.id < 0 or key.id == state.config.node_id:
        return
    replica = progress.replica_of(state, role, key)
    previous_fetch_ms = replica.fetched_at_ms
    progress.on_fetch_of(state, role, replica, _position(request))
    if not isinstance(
        state.log.validate(partition.fetch_offset, partition.last_fetched_epoch), Valid
    ):
        return
    if partition.fetch_offset >= state.log.end_offset:
        replica.caught_up_at_ms = state.now_ms
    elif replica.last_end_offset >= 0 and partition.fetch_offset >= replica.last_end_offset:
        replica.caught_up_at_ms = max(replica.caught_up_at_ms, previous_fetch_ms)
    replica.last_end_offset = state.log.end_offset
    replica.end_offset = partition.fetch_offset
    progress.update_high_watermark(state)


def _sender(request: FetchRequest) -> ReplicaKey:
    partition = messages.partition_of(request)
    assert partition is not None
    return ReplicaKey(replica_id(request), partition.replica_directory_id)


def _position(request: FetchRequest) -> tuple[int, int]:
    partition = messages.partition_of(request)
    assert partition is not None
    return partition.fetch_offset, partition.high_watermark


def replica_id(request: FetchRequest) -> int:
    """Return the sender's node id from whichever of its two fields is set."""
    return max(request.replica_id, request.replica_state.replica_id)


Answers: TypeAlias = dict[LogSlice | None, FetchResponse]
"""Answers of one step by their records: Fetches at the same offset share the content."""


def _answer(
    state: RaftState, request: FetchRequest, answers: Answers, *, is_last: bool = False
) -> FetchResponse | None:
    """Return the answer if there is something new or the deadline has passed; else None."""
    partition = messages.partition_of(request)
    assert partition is not None
    validation = state.log.validate(partition.fetch_offset, partition.last_fetched_epoch)
    if not isinstance(validation, Valid):
        return messages.fetch_response(state, validation=validation)
    records: LogSlice | None = None
    if partition.fetch_offset < state.log.end_offset:
        limit = min(request.max_bytes, state.config.fetch_max_bytes)
        records = LogSlice(partition.fetch_offset, state.log.end_offset, limit)
    elif not is_last:
        high_watermark = own_high_watermark(state)
        if high_watermark is None or high_watermark <= partition.high_watermark:
            return None
    if records not in answers:
        answers[records] = messages.fetch_response(state, records=records or b"")
    content = answers[records]
    return FetchResponse(responses=content.responses, node_endpoints=content.node_endpoints)


def poll_held(state: RaftState) -> None:
    """Answer the held Fetches that have something new or an expired deadline."""
    role = state.role
    if not isinstance(role, Leader) or not role.held_fetches:
        return
    latest = (state.log.end_offset, own_high_watermark(state))
    if role.held_fetches.compared_with == latest:
        fetches = role.held_fetches.take_expired(state.now)
    else:
        fetches = role.held_fetches.take_all()
        role.held_fetches.compared_with = latest
    answers: Answers = {}
    for fetch in fetches:
        response = _answer(state, fetch.request, answers, is_last=state.now >= fetch.deadline)
        if response is None:
            role.held_fetches.add(fetch)
        else:
            _reply(state, role, fetch, response)


# The follower's side ------------------------------------------------------------------------
def poll_fetch(state: RaftState) -> None:
    """Keep one Fetch (or FetchSnapshot) in flight."""
    from kwire.raftmeta.raft import snapshot

    role = state.role
    if (
        state.installing
        or isinstance(role, Leader)
        or any(_goes_first(call) for call in state.calls.open.values())
    ):
        return
    if (
        isinstance(role, Follower)
        and role.snapshot is not None
        and not state.calls.is_doubtful(role.leader.id)
    ):
        snapshot.ask(state, role)
        return
    if not isinstance(role, Follower | Unattached) or state.stopping:
        return
    node = _whom_to_ask(state)
    if node is not None:
        state.send(node, messages.fetch_request(state))


def _goes_first(call: Call) -> bool:
    """Return whether a call must end before a Fetch is sent: it would wait behind a held Fetch."""
    return isinstance(call.request, _ONE_AT_A_TIME)


def _whom_to_ask(state: RaftState) -> Node | None:
    """Return the leader; if it is unknown or does not answer, any node that may know it."""
    role = state.role
    if isinstance(role, Follower) and not state.calls.is_doubtful(role.leader.id):
        return role.leader
    nodes = [*state.other_voters]
    if all(state.is_out_of_reach(node.id) for node in nodes):
        nodes += _foreign_bootstrap(state)
    if isinstance(role, Follower):
        is_ready = state.calls.is_ready(role.leader.id, FetchRequest, state.now)
        if is_ready and state.random.random() < 0.5:
            return role.leader
    ready = [n for n in nodes if state.calls.is_ready(n.id, FetchRequest, state.now)]
    return ready[int(state.random.random() * len(ready))] if ready else None


def _foreign_bootstrap(state: RaftState) -> tuple[Node, ...]:
    """Return the bootstrap servers that are not a known voter's address: voters may have moved."""
    addresses = {(e.host, e.port) for e in state.config.endpoints}
    addresses |= {(n.host, n.port) for n in state.voter_nodes}
    return tuple(n for n in state.config.bootstrap if (n.host, n.port) not in addresses)


def on_fetch_answer(state: RaftState, call: Call, response: FetchResponse) -> None:
    """Process the leader's answer: records, a diverging log, or the need for a snapshot."""
    part = messages.answer_of(response)
    if part is None or response.error_code != errors.NONE:
        state.back_off(call.node.id)
        return
    leader_id = part.current_leader.leader_id
    before = state.election
    adopt_epoch_and_leader(
        state,
        part.current_leader.leader_epoch,
        None if leader_id < 0 else leader_id,
        messages.leader_in(response),
    )
    request = call.request
    assert isinstance(request, FetchRequest)
    partition = messages.partition_of(request)
    assert partition is not None
    role = state.role
    if part.error_code != errors.NONE:
        if state.election == before:
            state.pause_fetching(call.node.id)
        return
    state.calls.on_success(call.node.id)
    is_current = isinstance(role, Follower) and part.current_leader.leader_epoch == state.epoch
    if not is_current or partition.current_leader_epoch != state.epoch:
        return
    assert isinstance(role, Follower)
    state.calls.on_success(role.leader.id)
    if partition.fetch_offset == state.log.end_offset and role.snapshot is None:
        _take(state, role, part)


def _take(state: RaftState, role: Follower, part: Part) -> None:
    on_leader_answer(state, role)
    if part.diverging_epoch.epoch >= 0:
        _truncate(state, part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
        return
    if part.snapshot_id.end_offset >= 0:
        role.snapshot = SnapshotFetch(
            SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch)
        )
        return
    if part.records:
        data = sound_batches(state, part.records)
        if data:
            progress.append_fetched(state, data)
        else:
            logger.warning(
                "records refused leader=%d offset=%d", role.leader.id, state.log.end_offset
            )
            state.calls.retry_at[role.leader.id] = state.now + state.config.retry_backoff_s
    committed = min(part.high_watermark, state.log.end_offset)
    if committed >= 0:
        role.committed = part.high_watermark
        state.advance_high_watermark(committed)


def sound_batches(state: RaftState, data: bytes | memoryview) -> bytes | memoryview:
    """Return the whole batches in an answer; none if one is damaged or does not fit our log.

    Nothing is lost in that case: the batches are fetched again, and damage in transit will not
    recur.
    """
    end, offset, epoch = 0, state.log.end_offset, state.log.last_epoch
    try:
        for pos, header in headers(data):
            if header.leader_epoch > state.epoch:
                break
            fits = header.base_offset == offset and header.leader_epoch >= epoch
            if not fits or header.last_offset_delta < 0 or not crc_ok(data, pos, header):
                return b""
            if header.is_control:
                # Raises an error if the records are unreadable.
                note_voters(VoterHistory(), data, pos, header)
            end, offset, epoch = pos + header.size, header.next_offset, header.leader_epoch
    except (errors.CorruptMessage, MalformedError, ValueError):
        return b""
    return data[:end]


def _truncate(state: RaftState, epoch: int, end_offset: int) -> None:
    """Truncate the log where it diverges from the leader's (KIP-595, truncation detection)."""
    ours = state.log.epoch_end(epoch)
    to = min(ours.end_offset, end_offset) if ours.epoch == epoch else ours.end_offset
    to = max(to, state.log.start_offset)
    committed = state.high_watermark or 0
    assert to >= committed, f"asked to truncate to {to}, but {committed} is committed"
    if to < state.log.end_offset:
        state.log.truncate_to(to)
        state.history.truncate(to)
        state.emit(TruncateLog(to))
