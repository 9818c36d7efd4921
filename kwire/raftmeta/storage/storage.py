"""The protocol of a raft node's storage, and its in-memory implementation.

Rules: calls take effect in order; nothing is promised to be durable before the result of
``start_sync`` has run. After a crash, unsynced data may survive up to any call, the last one torn.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import Protocol

from kwire.raftmeta.raft.control_records import is_whole, note_voters, snapshot_voters
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
        """Install a snapshot taken by this node, synced."""

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


class MemoryStorage:
    """A node's storage in memory, lost when the process ends."""

    blocks = False

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        """Base offset, next offset and bytes of each batch."""
        self.start_offset = 0
        self.end_offset = 0
        self.election = ElectionState()
        self.snapshots: dict[SnapshotId, bytes] = {}
        self.partial: dict[SnapshotId, bytearray] = {}

    def load(self, configured: VoterSet) -> Recovered:
        self.partial.clear()
        snapshots = sorted(self.snapshots)
        log = LogState(self.start_offset, self.start_offset, [], snapshots)
        history = configured_history(configured, self._bootstrap())
        base = next((s for s in snapshots if s.end_offset > 0), None)
        if base is not None:
            voters, version = snapshot_voters(self.snapshots[base])
            history.reset(base.end_offset - 1, voters, version)
        replay(log, history, b"".join(data for _, _, data in self.batches))
        return Recovered(self.election, log, history)

    def _bootstrap(self) -> bytes:
        return self.snapshots.get(SnapshotId(0, 0), b"")

    def append(self, records: Bytes, base_offset: int) -> None:
        assert base_offset == self.end_offset, (base_offset, self.end_offset)
        for pos, header in headers(records):
            data = bytes(records[pos : pos + header.size])
            self.batches.append((header.base_offset, header.next_offset, data))
            self.end_offset = header.next_offset

    def truncate(self, end_offset: int) -> None:
        while self.batches and self.batches[-1][1] > end_offset:
            self.batches.pop()
        assert end_offset == (self.batches[-1][1] if self.batches else self.start_offset)
        self.end_offset = end_offset

    def clean(self, start_offset: int) -> None:
        self.batches = [b for b in self.batches if b[1] > start_offset]
        self.start_offset = max(self.start_offset, start_offset)
        old = [s for s in self.snapshots if s.end_offset < start_offset]
        for snapshot in old:
            del self.snapshots[snapshot]

    def read(self, start_offset: int, end_offset: int, max_bytes: int) -> Bytes:
        batches: list[bytes] = []
        size = 0
        first = max(bisect_right(self.batches, start_offset, key=itemgetter(0)) - 1, 0)
        for base, following, data in islice(self.batches, first, None):
            if following <= start_offset:
                continue
            if base >= end_offset or (batches and size + len(data) > max_bytes):
                break
            batches.append(data)
            size += len(data)
        return b"".join(batches)

    def log_size(self) -> int:
        return sum(len(data) for _, _, data in self.batches)

    def save_election(self, state: ElectionState, voters: VoterSet, kraft_version: int) -> None:
        self.election = state

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Bytes) -> None:
        partial = self.partial.setdefault(snapshot, bytearray())
        partial[position:] = data

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        data = bytes(self.partial.pop(snapshot))
        if not is_whole(data):
            return SnapshotRefused(snapshot)
        self.snapshots = {snapshot: data}
        self.batches.clear()
        self.start_offset = self.end_offset = snapshot.end_offset
        return SnapshotLoaded(snapshot, *snapshot_voters(data))

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        self.snapshots[snapshot] = b"".join(chunks)

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        return len(self.snapshots[snapshot])

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        return self.snapshots[snapshot][position : position + max_bytes]

    def start_sync(self) -> Callable[[], None] | None:
        return None

    def end_sync(self) -> None:
        pass

    def shed(self) -> bool:
        return False

    def close(self) -> None:
        pass


def configured_history(configured: VoterSet, bootstrap: bytes) -> VoterHistory:
    """Return the initial voters: those of checkpoint 0-0 (kraft.version 1), else the configured."""
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
