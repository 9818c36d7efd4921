"""Snapshots and the log: the log continues after a fetched snapshot, and own snapshots trim it.

Rules: a leader never loads a snapshot. The log is trimmed only up to the end of one of the node's
own snapshots: the second newest, so that a node that is slightly behind needs no snapshot, or the
newest if ``metadata.max.retention.*`` does not leave room for two.
"""

import attrs

from kwire.raftmeta.raft.events import CleanLog, SnapshotLoaded, SnapshotRefused, SnapshotTaken
from kwire.raftmeta.raft.roles import Follower, Leader
from kwire.raftmeta.raft.state import RaftState


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MetadataRetention:
    """The limits of retained metadata; a negative limit does not apply."""

    max_bytes: int = 100 << 20
    """``metadata.max.retention.bytes``: the size of the log and all snapshots."""
    max_ms: int = 604_800_000
    """``metadata.max.retention.ms``: the time since the last record in a snapshot."""

    def forbids(self, size_bytes: int, age_ms: int) -> bool:
        """Return whether the second newest snapshot must be removed, given its age and the size."""
        return 0 <= self.max_bytes < size_bytes or 0 <= self.max_ms < age_ms


def on_snapshot(state: RaftState, event: SnapshotTaken | SnapshotLoaded | SnapshotRefused) -> None:
    """Process a snapshot that was taken, installed or rejected."""
    match event:
        case SnapshotTaken():
            on_taken(state, event)
        case SnapshotLoaded():
            on_loaded(state, event)
        case SnapshotRefused():
            on_refused(state, event)


def on_loaded(state: RaftState, event: SnapshotLoaded) -> None:
    """Reset the log to an installed snapshot; fetching continues after it."""
    assert not isinstance(state.role, Leader), "a leader never loads a snapshot"
    assert event.id == state.installing
    state.installing = None
    state.log.reset(event.id)
    state.history.reset(event.id.end_offset - 1, event.voters, event.kraft_version)
    state.advance_high_watermark(event.id.end_offset)
    if isinstance(state.role, Follower):
        state.role.snapshot = None


def on_refused(state: RaftState, event: SnapshotRefused) -> None:
    """Drop a damaged fetched snapshot; the next Fetch lets the leader offer one again."""
    assert event.id == state.installing
    state.installing = None
    if isinstance(state.role, Follower):
        state.role.snapshot = None
        state.calls.retry_at[state.role.leader.id] = state.now + state.config.retry_backoff_s


def on_taken(state: RaftState, event: SnapshotTaken) -> None:
    """Drop the log and the snapshots that the retained snapshots replace."""
    assert event.id.end_offset <= (state.high_watermark or 0)
    if event.id.end_offset < state.log.start_offset:  # A later snapshot was fetched meanwhile.
        state.emit(CleanLog(state.log.start_offset))
        return
    older = [s for s in state.log.snapshots if s.end_offset < event.id.end_offset]
    state.log.add_snapshot(event.id)
    retained = [event.id] if event.alone else older
    if retained and retained[-1].end_offset > state.log.start_offset:
        start = retained[-1].end_offset
        state.log.trim_to(start)
        state.history.forget_before(start)
        state.emit(CleanLog(start))
