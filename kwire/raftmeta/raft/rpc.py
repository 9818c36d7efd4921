"""Dispatches messages to their rules; loaded with the first message or the second voter."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeVar, assert_never

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import (
    auto_join,
    describe,
    election,
    messages,
    quorum_epochs,
    reconfig,
    replication,
    snapshot,
    voting,
)
from kwire.raftmeta.raft.events import Reply
from kwire.raftmeta.raft.state import Call, RaftState

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import RaftRequest, RaftResponse

R = TypeVar("R", VoteResponse, BeginQuorumEpochResponse, EndQuorumEpochResponse)


def poll(state: RaftState) -> None:
    """Do everything that is due and concerns other nodes."""
    replication.poll_held(state)  # First, so that a removed leader still sends its high watermark.
    reconfig.poll(state)
    auto_join.poll(state)
    quorum_epochs.poll_update_voter(state)
    replication.poll_fetch(state)


def on_request(state: RaftState, token: Hashable, request: "RaftRequest") -> None:
    """Answer or hold a request from another node or a tool."""
    match request:
        case FetchRequest():
            replication.on_fetch(state, token, request)
        case VoteRequest():
            state.emit(Reply(token, voting.on_vote(state, request)))
        case BeginQuorumEpochRequest():
            state.emit(Reply(token, quorum_epochs.on_begin(state, request)))
        case EndQuorumEpochRequest():
            state.emit(Reply(token, quorum_epochs.on_end(state, request)))
        case FetchSnapshotRequest():
            snapshot.on_request(state, token, request)
        case DescribeQuorumRequest():
            state.emit(Reply(token, describe.describe(state, request)))
        case AddRaftVoterRequest():
            reconfig.on_add(state, token, request)
        case RemoveRaftVoterRequest():
            reconfig.on_remove(state, token, request)
        case UpdateRaftVoterRequest():
            reconfig.on_update(state, token, request)
        case _:
            assert_never(request)


def on_answer(state: RaftState, call: Call, response: "RaftResponse | None") -> None:
    """Process the answer to a request of this node; None if no answer came."""
    if isinstance(call.request, ApiVersionsRequest):
        features = response if isinstance(response, ApiVersionsResponse) else None
        reconfig.on_api_versions(state, call, features)
        return
    match response:
        case None:
            state.back_off(call.node.id)
        case FetchResponse():
            replication.on_fetch_answer(state, call, response)
        case FetchSnapshotResponse():
            snapshot.on_answer(state, call, response)
        case VoteResponse():
            _on_vote_answer(state, call, response)
        case BeginQuorumEpochResponse():
            _learn_from(state, call, response)
        case EndQuorumEpochResponse():
            quorum_epochs.on_end_answer(state, call.node.id)
            _learn_from(state, call, response)
        case UpdateRaftVoterResponse():
            quorum_epochs.on_update_answer(state, call, response)
        case AddRaftVoterResponse() | RemoveRaftVoterResponse():
            auto_join.on_answer(state, call, response)
        case _:
            state.back_off(call.node.id)


def on_refused(state: RaftState, call: Call) -> None:
    """Process a refused connection: no process listens at the request's address."""
    voting.on_refused(state, call.node.id)


def _on_vote_answer(state: RaftState, call: Call, response: VoteResponse) -> None:
    request = call.request
    assert isinstance(request, VoteRequest)
    partition = messages.partition_of(request)
    assert partition is not None
    _learn_from(state, call, response)
    if partition.replica_epoch == state.epoch:
        voting.on_vote_answer(state, call.node.id, response, pre=partition.pre_vote)


def _learn_from(
    state: RaftState,
    call: Call,
    response: R,
) -> None:
    """Adopt the epoch and leader that the sender reports, as every answer does."""
    part = messages.answer_of(response)
    if response.error_code != errors.NONE or part is None:
        state.back_off(call.node.id)
        return
    state.calls.on_success(call.node.id)
    leader_id = None if part.leader_id < 0 else part.leader_id
    election.adopt_epoch_and_leader(
        state, part.leader_epoch, leader_id, messages.leader_in(response)
    )
