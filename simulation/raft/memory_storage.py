"""A raft node's storage in memory, which loses nothing in a crash."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter

from kwire.raftmeta.raft.control_records import is_whole, snapshot_voters
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.storage import Bytes, configured_history, replay
from kwire.records.header import headers


class MemoryStorage:
    """A node's storage that lasts as long as the process."""

    blocks = False

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        """Base offset, next offset, bytes."""
        self.start_offset = 0
        self.end_offset = 0
        self.election = ElectionState()
        self.snapshots: dict[SnapshotId, bytes] = {}
        self.partial: dict[SnapshotId, bytearray] = {}
        self.batch_positions: dict[SnapshotId, list[int]] = {}

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
            self.batch_positions.pop(snapshot, None)

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
        self.batch_positions.clear()
        self.batches.clear()
        self.start_offset = self.end_offset = snapshot.end_offset
        return SnapshotLoaded(snapshot, *snapshot_voters(data))

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        self.snapshots.setdefault(snapshot, b"".join(chunks))

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
