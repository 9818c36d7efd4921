"""Replies that a leader owes: to a voter change, and to the Fetches that it holds."""

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterResponse
from kwire.errors import KafkaError
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import Reply
from kwire.raftmeta.raft.roles import ChangeKind, Leader
from kwire.raftmeta.raft.state import RaftState


def finish_change(state: RaftState, role: Leader, error: KafkaError | None) -> None:
    """Complete the voter change in progress, and answer its request."""
    change, role.change = role.change, None
    if change is None:
        return
    match change.kind:
        case ChangeKind.ADD:
            state.emit(Reply(change.token, add_voter_response(error)))
        case ChangeKind.ADD_TO_LOG:
            if change.offset is None:
                state.emit(Reply(change.token, add_voter_response(error)))
        case ChangeKind.REMOVE:
            state.emit(Reply(change.token, remove_voter_response(error)))
        case ChangeKind.UPDATE:
            pass  # It was already answered when it was written.


def dismiss_all(state: RaftState, role: Leader) -> None:
    """Answer NOT_LEADER_OR_FOLLOWER to all requests that wait for a leader that has resigned.

    A voter change that is already in the log is left to the next leader.
    """
    code = errors.NotLeaderOrFollower.code
    for fetch in role.held_fetches.take_all():
        state.emit(Reply(fetch.token, messages.fetch_response(state, error=code)))
    finish_change(state, role, errors.NotLeaderOrFollower())


def add_voter_response(error: KafkaError | None) -> AddRaftVoterResponse:
    """Return the answer to AddRaftVoter."""
    code = error.code if error else errors.NONE
    return AddRaftVoterResponse(error_code=code, error_message=str(error) if error else None)


def remove_voter_response(error: KafkaError | None) -> RemoveRaftVoterResponse:
    """Return the answer to RemoveRaftVoter."""
    code = error.code if error else errors.NONE
    return RemoveRaftVoterResponse(error_code=code, error_message=str(error) if error else None)
