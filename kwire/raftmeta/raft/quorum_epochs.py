"""Messages between a leader and its voters: BeginQuorumEpoch, EndQuorumEpoch, UpdateRaftVoter."""

from kwire import errors
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.election import adopt_epoch_and_leader, contradicts, on_leader_ended
from kwire.raftmeta.raft.roles import Follower, Resigned
from kwire.raftmeta.raft.state import Call, RaftState
from kwire.raftmeta.raft.voters import Node, VoterEndpoint, endpoint_of
from kwire.raftmeta.raft.voting import is_me


# BeginQuorumEpoch ---------------------------------------------------------------------------
def on_begin(state: RaftState, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
    """Answer BeginQuorumEpoch: follow the leader that sent it."""
    if request.cluster_id not in (None, state.config.cluster_id):
        return BeginQuorumEpochResponse(error_code=errors.InconsistentClusterId.code)
    partition = messages.partition_of(request)
    if partition is None:
        return BeginQuorumEpochResponse(error_code=errors.InvalidRequest.code)
    if partition.leader_epoch < state.epoch:
        return messages.begin_response(state, errors.FencedLeaderEpoch.code)
    if partition.leader_id < 0 or contradicts(state, partition.leader_epoch, partition.leader_id):
        return messages.begin_response(state, errors.InvalidRequest.code)
    if not is_me(state, request.voter_id, partition.voter_directory_id):
        return messages.begin_response(state, errors.InvalidVoterKey.code)
    address = _leader_address(state, request, partition.leader_id)
    adopt_epoch_and_leader(state, partition.leader_epoch, partition.leader_id, address)
    return messages.begin_response(state)


def _leader_address(
    state: RaftState, request: BeginQuorumEpochRequest | EndQuorumEpochRequest, leader_id: int
) -> Node | None:
    """Return the leader's address from the endpoints in its request; None without any."""
    endpoints = [VoterEndpoint(e.name, e.host, e.port) for e in request.leader_endpoints]
    if not endpoints:
        return None
    endpoint = endpoint_of(endpoints, state.config.listener)
    return Node(leader_id, endpoint.host, endpoint.port)


# EndQuorumEpoch -----------------------------------------------------------------------------
def on_end(state: RaftState, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
    """Answer EndQuorumEpoch: the first preferred candidate starts an election at once."""
    if request.cluster_id not in (None, state.config.cluster_id):
        return EndQuorumEpochResponse(error_code=errors.InconsistentClusterId.code)
    partition = messages.partition_of(request)
    if partition is None:
        return EndQuorumEpochResponse(error_code=errors.InvalidRequest.code)
    if partition.leader_epoch < state.epoch:
        return messages.end_response(state, errors.FencedLeaderEpoch.code)
    if partition.leader_id < 0 or contradicts(state, partition.leader_epoch, partition.leader_id):
        return messages.end_response(state, errors.InvalidRequest.code)
    address = _leader_address(state, request, partition.leader_id)
    adopt_epoch_and_leader(state, partition.leader_epoch, partition.leader_id, address)
    role = state.role
    if isinstance(role, Follower) and role.leader.id == partition.leader_id and state.is_voter:
        ids = [candidate.candidate_id for candidate in partition.preferred_candidates]
        on_leader_ended(state, role, _candidacy_delay_s(state, ids))
    return messages.end_response(state)


def _candidacy_delay_s(state: RaftState, preferred: list[int]) -> float:
    """Return the seconds until candidacy: 0 for the first candidate, or if not listed."""
    if state.config.node_id not in preferred:
        return 0.0
    position = preferred.index(state.config.node_id)
    if position == 0:
        return 0.0
    share = state.config.election_backoff_max_s / (1 << max(len(preferred) - position, 0))
    return share * (1 + state.random.random())


def on_end_answer(state: RaftState, node_id: int) -> None:
    if isinstance(state.role, Resigned):
        state.role.uninformed.discard(node_id)


# UpdateRaftVoter ----------------------------------------------------------------------------
def poll_update_voter(state: RaftState) -> None:
    """Send a follower's current endpoints to its leader, one fetch timeout after following it.

    This is repeated until the leader of the epoch has accepted them. With kraft.version 0, the
    leader learns in this way the directory ids that an upgrade needs; with later versions, nothing
    is sent while the voter set has the same values. A node that is no voter keeps its timer: it may
    become one, and :mod:`kwire.raftmeta.raft.auto_join` uses the timer too.
    """
    role = state.role
    if not isinstance(role, Follower) or state.now < role.update_voter_at:
        return
    if any(isinstance(call.request, FetchRequest) for call in state.calls.open.values()):
        return  # Only between Fetches: on the connection, it would wait behind a held one.
    role.update_voter_at = state.now + state.config.fetch_timeout_s
    if state.is_voter and not state.stopping and _must_update(state, role):
        state.send(role.leader, messages.update_request(state))


def _must_update(state: RaftState, role: Follower) -> bool:
    """Return whether the leader may not know this voter as it is now."""
    if role.is_described:
        return False
    own = state.voters.get(state.config.node_id)
    is_known = own is not None and own.is_described_by(state.config.as_voter)
    return not is_known or state.history.kraft_version == 0


def on_update_answer(state: RaftState, call: Call, response: UpdateRaftVoterResponse) -> None:
    """Record that the leader knows this voter, or schedule another attempt."""
    role, request = state.role, call.request
    assert isinstance(request, UpdateRaftVoterRequest)
    if not isinstance(role, Follower):
        return
    if response.error_code != errors.NONE:
        role.update_voter_at = state.now + state.config.fetch_timeout_s
    elif request.current_leader_epoch == state.epoch:
        role.is_described = True
