"""Snapshots in the log: the log continues after a fetched one, and is cleaned behind our own.

Rules: a leader never loads a snapshot; the log is cleaned only up to the end of one of our own
snapshots: the one before the newest, so that a node that is a little behind needs no snapshot,
or the newest where ``metadata.max.retention.*`` leave no room for more.
"""

from kwire import attrs
from kwire.raftmeta.raft.events import CleanLog, SnapshotLoaded, SnapshotRefused, SnapshotTaken
from kwire.raftmeta.raft.roles import Follower, Leader
from kwire.raftmeta.raft.state import RaftState


@attrs.frozen(kw_only=True)
class MetadataRetention:
    """The limits of the retained metadata; a negative limit does not apply."""

    max_bytes: int = 100 << 20
    """``metadata.max.retention.bytes``: of the log and all snapshots."""
    max_ms: int = 604_800_000
    """``metadata.max.retention.ms``: since the last record in a snapshot."""

    def forbids(self, size_bytes: int, age_ms: int) -> bool:
        """Whether the snapshot before the newest, of that age, has to be removed."""
        return 0 <= self.max_bytes < size_bytes or 0 <= self.max_ms < age_ms


def on_snapshot(state: RaftState, event: SnapshotTaken | SnapshotLoaded | SnapshotRefused) -> None:
    """Process a snapshot that was taken, loaded or refused."""
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
    """Drop a fetched snapshot that was damaged; the next Fetch asks the leader for what it has."""
    assert event.id == state.installing
    state.installing = None
    if isinstance(state.role, Follower):
        state.role.snapshot = None
        state.calls.retry_at[state.role.leader.id] = state.now + state.config.retry_backoff_s


def on_taken(state: RaftState, event: SnapshotTaken) -> None:
    """Drop the log and snapshots that our own new snapshot and its predecessor replace."""
    assert event.id.end_offset <= (state.high_watermark or 0)
    if event.id.end_offset < state.log.start_offset:  # A later one was fetched meanwhile.
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
