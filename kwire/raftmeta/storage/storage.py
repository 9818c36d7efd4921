"""The protocol of a raft node's storage, and what every storage does when it is loaded.

Rules: calls take effect in order; nothing is promised to be durable before the result of
``start_sync`` has run. After a crash, the unsynced writes up to any point may survive, the last of
them torn.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from kwire.raftmeta.raft.control_records import note_voters, snapshot_voters
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import CONFIGURED, VoterHistory, VoterSet
from kwire.records.header import headers

Bytes = bytes | memoryview


class MetadataStorage(Protocol):
    """The log, quorum-state and snapshots of one node."""

    blocks: bool
    """True if syncing and storing a snapshot may block, so that they belong in a thread."""

    @property
    def batch_positions(self) -> dict[SnapshotId, list[int]]:
        """The starts of the batches of snapshots that were read piece by piece, as far as known."""

    def load(self, configured: VoterSet) -> Recovered: ...

    def append(self, records: Bytes, base_offset: int) -> None: ...

    def truncate(self, end_offset: int) -> None: ...

    def clean(self, start_offset: int) -> None: ...

    def read(self, start_offset: int, end_offset: int, max_bytes: int) -> Bytes:
        """Return whole batches from ``start_offset`` up to ``end_offset``; at least one."""

    def log_size(self) -> int:
        """Return the size of the log's files in bytes."""

    def save_election(self, state: ElectionState, voters: VoterSet, kraft_version: int) -> None: ...

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Bytes) -> None: ...

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        """Install a fetched snapshot that was written, unless it is damaged."""

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        """Install a snapshot taken by this node, synced, unless one with this id exists."""

    def snapshot_size(self, snapshot: SnapshotId) -> int: ...

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes: ...

    def start_sync(self) -> Callable[[], None] | None:
        """Return a call, for any thread, that makes all writes durable; None if they are."""

    def end_sync(self) -> None:
        """Record that the call from ``start_sync`` ran without an error."""

    def shed(self) -> bool:
        """Close files that are not in use, after a call that found no descriptor.

        Return whether there were any. Call this on the event loop.
        """

    def close(self) -> None: ...


def configured_history(configured: VoterSet, bootstrap: bytes) -> VoterHistory:
    """Return the initial voters: those of checkpoint 0-0 (kraft.version 1), or the configured."""
    voters, version = snapshot_voters(bootstrap) if bootstrap else (VoterSet(), 0)
    history = VoterHistory()
    if version:
        history.reset(CONFIGURED, voters, version)
    elif configured:
        history.add(CONFIGURED, configured)
    return history


def replay(log: LogState, history: VoterHistory, data: Bytes) -> None:
    """Add the epochs and voters in a recovered log's batch headers.

    Voters from before the end of the oldest snapshot come from that snapshot.
    """
    snapshot_end = next((s.end_offset for s in log.snapshots if s.end_offset > 0), 0)
    for pos, header in headers(data):
        if header.base_offset < log.end_offset:  # The snapshot already contains this batch.
            continue
        log.append_batch(header.leader_epoch, header.base_offset, header.next_offset)
        if header.is_control and header.base_offset >= snapshot_end:
            note_voters(history, data, pos, header)
