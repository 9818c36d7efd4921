"""Automatic joining of the voters by a controller (``controller.quorum.auto.join.enable``).

Rules: only a controller joins, only with kraft.version 1, at most once per fetch timeout, and
between two Fetches. If the voter set has this id with another directory (this node before it lost
its disk), that voter is removed first.
"""

from typing import TYPE_CHECKING

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.raftmeta.raft.roles import Follower
from kwire.raftmeta.raft.state import RaftState

if TYPE_CHECKING:
    from kwire.raftmeta.raft.state import Call

_SETTLED = frozenset(
    (
        errors.NONE,
        errors.RequestTimedOut.code,
        errors.DuplicateVoter.code,
        errors.VoterNotFound.code,
    )
)
"""Errors after which the next attempt waits for its interval instead of a backoff."""


def poll(state: RaftState) -> None:
    """Ask the leader to add this node to the voters, if configured and due."""
    role = state.role
    if not state.config.auto_join or not isinstance(role, Follower):
        return
    if state.now < role.update_voter_at or not _may_join(state, role):
        return
    if any(isinstance(call.request, FetchRequest) for call in state.calls.open.values()):
        return
    role.update_voter_at = state.now + state.config.fetch_timeout_s
    is_known = state.voters.get(state.config.node_id) is not None
    state.send(role.leader, remove_request(state) if is_known else add_request(state))


def _may_join(state: RaftState, role: Follower) -> bool:
    is_settled = state.installing is None and role.snapshot is None and not state.stopping
    may_be_added = state.history.kraft_version > 0 and state.config.can_vote
    return is_settled and may_be_added and not state.is_voter


def add_request(state: RaftState) -> AddRaftVoterRequest:
    """Return the request to add this node, to be answered on append: its own vote may be needed."""
    return AddRaftVoterRequest(
        cluster_id=state.config.cluster_id,
        timeout_ms=int(state.config.request_timeout_s * 1000),
        voter_id=state.config.node_id,
        voter_directory_id=state.config.directory_id,
        listeners=[
            AddRaftVoterRequest.Listener(name=e.name, host=e.host, port=e.port)
            for e in state.config.endpoints
        ],
        ack_when_committed=False,
    )


def remove_request(state: RaftState) -> RemoveRaftVoterRequest:
    """Return the request to remove this node's former voter, which had another directory."""
    before = state.voters.key_of(state.config.node_id)
    return RemoveRaftVoterRequest(
        cluster_id=state.config.cluster_id,
        voter_id=before.id,
        voter_directory_id=before.directory_id,
    )


def on_answer(
    state: RaftState, call: "Call", response: AddRaftVoterResponse | RemoveRaftVoterResponse
) -> None:
    """Process the answer; the change arrives in the log, and a later poll continues."""
    if response.error_code not in _SETTLED:
        state.back_off(call.node.id)
        return
    state.calls.on_success(call.node.id)
    if isinstance(state.role, Follower):
        state.role.update_voter_at = state.now + state.config.fetch_timeout_s
