"""The leader's state as it appears in messages: its epoch, high watermark and errors."""

from kwire import errors
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftState


def is_epoch_committed(state: RaftState, role: Leader) -> bool:
    """Return whether a record of the leader's own epoch is committed."""
    return state.high_watermark is not None and state.high_watermark > role.epoch_start


def own_high_watermark(state: RaftState) -> int | None:
    """Return the high watermark; None on a leader that has not advanced it itself yet."""
    role = state.role
    if isinstance(role, Leader) and not is_epoch_committed(state, role):
        return None
    return state.high_watermark


def leader_error(state: RaftState, epoch: int) -> int:
    """Return the error code for a request to the leader of ``epoch``; NONE if this node leads."""
    if 0 <= epoch < state.epoch:
        return errors.FencedLeaderEpoch.code
    if epoch > state.epoch:
        return errors.UnknownLeaderEpoch.code
    if not isinstance(state.role, Leader):
        return errors.NotLeaderOrFollower.code
    return errors.NONE
