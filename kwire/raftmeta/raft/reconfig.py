"""Changes of the voter set (KIP-853): add, remove or update a voter, raise kraft.version.

Rules, from section 4 of Ongaro's thesis and the KIP: one change at a time; no change before the
leader has committed a record of its own epoch; the new set takes effect as soon as it is in the
log; consecutive sets differ by one voter, so their majorities always share a node.
"""

from collections.abc import Hashable
from typing import Final

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.errors import KafkaError
from kwire.raftmeta.raft import messages, progress
from kwire.raftmeta.raft.control_records import voters_records
from kwire.raftmeta.raft.election import become_resigned
from kwire.raftmeta.raft.events import Appended, Refused, Reply, UpgradeKraftVersion
from kwire.raftmeta.raft.leader_view import is_epoch_committed, leader_error
from kwire.raftmeta.raft.pending_replies import (
    add_voter_response,
    finish_change,
    remove_voter_response,
)
from kwire.raftmeta.raft.roles import ChangeKind, Leader, VoterChange
from kwire.raftmeta.raft.state import Call, RaftState
from kwire.raftmeta.raft.voters import (
    Node,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterSet,
    endpoint_of,
    to_record,
)
from kwire.types import ZERO_UUID

CAUGHT_UP_WITHIN_MS: Final = 3_600_000
"""A new voter must have been caught up within this time, in milliseconds."""


def check_change(state: RaftState, cluster_id: str | None) -> Leader:
    """Return the leader's role if a change may begin now; otherwise raise the reason."""
    if cluster_id not in (None, state.config.cluster_id):
        raise errors.InconsistentClusterId
    role = state.role
    if not isinstance(role, Leader) or state.stopping:
        raise errors.NotLeaderOrFollower
    if not is_epoch_committed(state, role):
        raise errors.RequestTimedOut("the leader has committed nothing in its epoch yet")
    pending = state.history.latest_offset >= (state.high_watermark or 0)
    if role.change is not None or pending:
        raise errors.RequestTimedOut("another change of the voters is in progress")
    return role


def check_dynamic(state: RaftState) -> None:
    if state.history.kraft_version < 1:
        raise errors.UnsupportedVersion(
            f"Changing voters needs kraft.version 1 or newer; it is {state.history.kraft_version}"
        )


# Add ----------------------------------------------------------------------------------------
def on_add(state: RaftState, token: Hashable, request: AddRaftVoterRequest) -> None:
    """Ask the new voter for its supported versions; its answer continues the change."""
    try:
        role = check_change(state, request.cluster_id)
        check_dynamic(state)
        voter = _voter_of(request, state.config.listener)
        if state.voters.get(voter.id) is not None:
            raise errors.DuplicateVoter(f"node {voter.id} is already a voter")
    except KafkaError as error:
        state.emit(Reply(token, add_voter_response(error)))
        return
    endpoint = endpoint_of(voter.endpoints, state.config.listener)
    wait = min(request.timeout_ms / 1000, state.config.request_timeout_s * 2)
    kind = ChangeKind.ADD if request.ack_when_committed else ChangeKind.ADD_TO_LOG
    role.change = VoterChange(token, kind, voter, state.now + wait)
    role.change.call_id = state.send(
        Node(voter.id, endpoint.host, endpoint.port),
        ApiVersionsRequest(client_software_name="kwire", client_software_version="1"),
    )
    if role.change.call_id is None:
        finish_change(state, role, errors.RequestTimedOut("the new voter does not answer"))


def _voter_of(request: AddRaftVoterRequest, listener: str) -> Voter:
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        raise errors.InvalidRequest("a voter needs an id and a directory id")
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    return Voter(key, _endpoints_of(request, listener))


def _endpoints_of(
    request: AddRaftVoterRequest | UpdateRaftVoterRequest, listener: str
) -> tuple[VoterEndpoint, ...]:
    """Return a voter's endpoints, of which one must be for the listener that the voters use.

    Apache Kafka's nodes fail on a set with a voter that has no endpoint there.
    """
    endpoints = tuple(VoterEndpoint(e.name, e.host, e.port) for e in request.listeners)
    if all(endpoint.name != listener for endpoint in endpoints):
        raise errors.InvalidRequest(f"a voter needs an endpoint for the listener {listener}")
    return endpoints


def on_api_versions(state: RaftState, call: Call, response: ApiVersionsResponse | None) -> None:
    """Write the new set if the new voter supports kraft.version and has caught up."""
    role = state.role
    if not isinstance(role, Leader) or role.change is None or role.change.call_id != call.id:
        return
    change = role.change
    if response is None or response.error_code != errors.NONE:
        finish_change(state, role, errors.RequestTimedOut("the new voter does not answer"))
        return
    versions = [f for f in response.supported_features if f.name == "kraft.version"]
    newest = versions[0].max_version if versions else 0
    if newest < state.history.kraft_version:
        finish_change(
            state, role, errors.InvalidRequest(f"the new voter supports kraft.version {newest}")
        )
        return
    replica = role.replicas.get(change.voter.key)
    caught_up_at_ms = replica.caught_up_at_ms if replica else -1
    if caught_up_at_ms < 0 or caught_up_at_ms < state.now_ms - CAUGHT_UP_WITHIN_MS:
        finish_change(state, role, errors.RequestTimedOut("the new voter has not caught up"))
        return
    change.voter = Voter(change.voter.key, change.voter.endpoints, 0, newest)
    _write(state, role, state.voters.with_voter(change.voter))
    if change.kind is ChangeKind.ADD_TO_LOG:
        state.emit(Reply(change.token, add_voter_response(None)))


def _write(state: RaftState, role: Leader, voters: VoterSet) -> None:
    assert role.change is not None
    role.change.deadline = float("inf")
    role.change.call_id = None
    role.change.offset = progress.append_control(state, [to_record(voters)])


# Remove -------------------------------------------------------------------------------------
def on_remove(state: RaftState, token: Hashable, request: RemoveRaftVoterRequest) -> None:
    """Remove a voter; a leader that removes itself resigns once the removal is committed."""
    try:
        role = check_change(state, request.cluster_id)
        check_dynamic(state)
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        voter = state.voters.get(key.id)
        if voter is None or voter.key != key:
            raise errors.VoterNotFound(f"{key.id} with that directory is not a voter")
        if len(state.voters) == 1:
            raise errors.InvalidRequest("the last voter cannot be removed")
    except KafkaError as error:
        state.emit(Reply(token, remove_voter_response(error)))
        return
    role.change = VoterChange(token, ChangeKind.REMOVE, voter, float("inf"))
    _write(state, role, state.voters.without(key.id))


# Update -------------------------------------------------------------------------------------
def on_update(state: RaftState, token: Hashable, request: UpdateRaftVoterRequest) -> None:
    """Update a voter's endpoints and supported versions, as the voter requests."""
    error = leader_error(state, request.current_leader_epoch)
    if error != errors.NONE:
        state.emit(Reply(token, _update_response(state, error)))
        return
    try:
        role = check_change(state, request.cluster_id)
        voter = _updated_voter(request, state.config.listener)
        if not state.voters.has(voter.key):
            raise errors.VoterNotFound
        if not voter.min_version <= state.history.kraft_version <= voter.max_version:
            raise errors.InvalidRequest
    except KafkaError as refused:
        state.emit(Reply(token, _update_response(state, refused.code)))
        return
    role.voter_descriptions[voter.id] = voter
    if state.history.kraft_version == 0 or state.voters.get(voter.id) == voter:
        state.emit(Reply(token, _update_response(state, errors.NONE)))
        return
    role.change = VoterChange(token, ChangeKind.UPDATE, voter, float("inf"))
    _write(state, role, state.voters.with_voter(voter))
    # The voter fetches this change only after it has the answer.
    state.emit(Reply(token, _update_response(state, errors.NONE)))


def _updated_voter(request: UpdateRaftVoterRequest, listener: str) -> Voter:
    feature = request.k_raft_version_feature
    if request.voter_id < 0:
        raise errors.InvalidRequest
    return Voter(
        ReplicaKey(request.voter_id, request.voter_directory_id),
        _endpoints_of(request, listener),
        feature.min_supported_version,
        feature.max_supported_version,
    )


# kraft.version ------------------------------------------------------------------------------
def on_upgrade(state: RaftState, event: UpgradeKraftVersion) -> None:
    """Move the voter set into the log, with the directory ids that the voters reported."""
    try:
        described = check_upgrade(state, event.version)
    except KafkaError as error:
        state.emit(Refused(event.token, error))
        return
    base_offset = state.log.end_offset
    if event.version > state.history.kraft_version:
        progress.append_control(state, voters_records(described, event.version))
    state.emit(Appended(event.token, base_offset, state.log.end_offset - 1))


def check_upgrade(state: RaftState, version: int) -> VoterSet:
    """Return the voters as the log would have them; raise the reason if that is impossible."""
    role = check_change(state, None)
    if version < state.history.kraft_version or version > 1:
        raise errors.InvalidUpdateVersion(f"kraft.version cannot become {version}")
    return VoterSet.of(_describe_voter(state, role, node_id) for node_id in state.voters.ids)


def _describe_voter(state: RaftState, role: Leader, node_id: int) -> Voter:
    if node_id == state.config.node_id:
        return state.config.as_voter
    voter = role.voter_descriptions.get(node_id)
    if voter is None or voter.max_version < 1:
        raise errors.InvalidUpdateVersion(
            f"Voter {node_id} has not yet reported that it supports this."
        )
    return voter


# The end of a change ------------------------------------------------------------------------
def poll(state: RaftState) -> None:
    """Answer a change that is committed or has timed out."""
    role = state.role
    if not isinstance(role, Leader):
        return
    committed = state.high_watermark or 0
    change = role.change
    if change is not None:
        if change.offset is not None and committed > change.offset:
            finish_change(state, role, None)
        elif state.now >= change.deadline:
            finish_change(state, role, errors.RequestTimedOut("the new voter does not answer"))
    is_out = state.history.kraft_version > 0 and not state.voters.has(state.key)
    if is_out and committed > state.history.latest_offset:
        become_resigned(state, progress.preferred_candidates(state, role))


def _update_response(state: RaftState, code: int) -> UpdateRaftVoterResponse:
    node = state.leader_node()
    leader = UpdateRaftVoterResponse.CurrentLeader(
        leader_id=messages.leader_field(state),
        leader_epoch=state.epoch,
        host=node.host if node else "",
        port=node.port if node else 0,
    )
    return UpdateRaftVoterResponse(error_code=code, current_leader=leader)
