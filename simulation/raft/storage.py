"""A raft node's disk that loses unsynced data."""

from collections.abc import Callable, Iterable
from random import Random

from kwire.errors import CorruptMessage
from kwire.raftmeta.raft.control_records import is_whole
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.damage import first_damaged
from kwire.raftmeta.storage.storage import Bytes
from kwire.records.header import CRC_POS, headers, parse
from simulation.raft.memory_storage import MemoryStorage


def with_flipped_bit(data: bytes, start: int, end: int, random: Random) -> bytes:
    """Return a copy with one bit flipped between ``start`` and ``end``."""
    changed = bytearray(data)
    changed[random.randrange(start, end)] ^= 1 << random.randrange(8)
    return bytes(changed)


class SimStorage:
    """A storage in two copies: the page cache, and the data that survives a power loss.

    Calls reach the platter in order: a crash keeps a prefix of the calls since the last sync, and
    may cut an append after any of its batches.
    """

    blocks = False

    def __init__(self) -> None:
        self.cache = MemoryStorage()
        self.durable = MemoryStorage()
        self.pending: list[Callable[[MemoryStorage], object]] = []
        self.has_rotted = False

    def _do(self, call: Callable[[MemoryStorage], object]) -> None:
        call(self.cache)
        self.pending.append(call)

    @property
    def batch_positions(self) -> dict[SnapshotId, list[int]]:
        return self.cache.batch_positions

    def load(self, configured: VoterSet) -> Recovered:
        """Load the storage, rejecting damage as a node's real files do."""
        for base, _, data in self.cache.batches:
            if first_damaged(data, base) is not None:
                raise CorruptMessage(f"the metadata log is damaged at offset {base}")
        for snapshot, data in self.cache.snapshots.items():
            if not is_whole(data):
                raise CorruptMessage(f"{snapshot} is damaged")
        return self.cache.load(configured)

    def append(self, records: Bytes, base_offset: int) -> None:
        for pos, header in headers(records):  # A crash may cut after each batch.
            data = bytes(records[pos : pos + header.size])
            self._do(lambda disk, d=data, b=header.base_offset: disk.append(d, b))  # type: ignore[misc]

    def truncate(self, end_offset: int) -> None:
        self._do(lambda disk: disk.truncate(end_offset))

    def clean(self, start_offset: int) -> None:
        self._do(lambda disk: disk.clean(start_offset))

    def read(self, start_offset: int, end_offset: int, max_bytes: int) -> Bytes:
        return self.cache.read(start_offset, end_offset, max_bytes)

    def log_size(self) -> int:
        return self.cache.log_size()

    def save_election(self, state: ElectionState, voters: VoterSet, kraft_version: int) -> None:
        self._do(lambda disk: disk.save_election(state, voters, kraft_version))

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Bytes) -> None:
        copy = bytes(data)
        self._do(lambda disk: disk.write_snapshot(snapshot, position, copy))

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        loaded = self.cache.install_snapshot(snapshot)
        self.pending.append(lambda disk: disk.install_snapshot(snapshot))
        return loaded

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        pieces = list(chunks)
        self._do(lambda disk: disk.store_snapshot(snapshot, pieces))
        self.sync()

    def format(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        """Write the checkpoint 0-0 of a dynamic quorum."""
        self.store_snapshot(snapshot, chunks)

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        return self.cache.snapshot_size(snapshot)

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        return self.cache.read_snapshot(snapshot, position, max_bytes)

    def sync(self) -> None:
        for call in self.pending:
            call(self.durable)
        self.pending.clear()

    def start_sync(self) -> Callable[[], None] | None:
        return self.sync

    def end_sync(self) -> None:
        pass

    def shed(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def die_after(self, changes: int | None) -> None:
        """Do nothing: calls to this disk are atomic."""

    def fail(self, random: Random) -> None:
        """Do nothing: only real files fail."""

    def repair(self) -> bool:
        """Return False: this disk never fails."""
        return False

    def rot_batch(self, random: Random, start_offset: int) -> bool:
        """Flip a bit of a synced batch at or after ``start_offset``, in the cache and on disk."""
        synced = set(self.durable.batches)
        batches = [b for b in self.cache.batches if b[0] >= start_offset and b in synced]
        if self.pending or not batches:
            return False
        base, following, data = sound = random.choice(batches)
        rotten = base, following, with_flipped_bit(data, CRC_POS, len(data), random)
        for disk in (self.cache, self.durable):
            disk.batches[disk.batches.index(sound)] = rotten
        return True

    def rot_snapshot(self, random: Random) -> bool:
        """Flip a bit of a snapshot, in the cache and on disk."""
        if self.pending or not self.cache.snapshots:
            return False
        snapshot = random.choice(sorted(self.cache.snapshots))
        data = self.cache.snapshots[snapshot]
        first = parse(data).size
        rotten = with_flipped_bit(data, CRC_POS, first, random)
        self.cache.snapshots[snapshot] = self.durable.snapshots[snapshot] = rotten
        return True

    def crash(self, random: Random, *, power: bool = True) -> None:
        """Keep a prefix of the unsynced calls, or all of them if only the process dies."""
        call_count = random.randrange(len(self.pending) + 1) if power else len(self.pending)
        del self.pending[call_count:]
        self.sync()
        disk, self.cache = self.durable, MemoryStorage()
        self.cache.batches = list(disk.batches)
        self.cache.start_offset, self.cache.end_offset = disk.start_offset, disk.end_offset
        self.cache.election = disk.election
        self.cache.snapshots = dict(disk.snapshots)
        disk.partial.clear()

    def survivor(self, random: Random, *, power: bool) -> "SimStorage":
        """Return the storage after a crash; later writes to this object are lost."""
        self.crash(random, power=power)
        survivor = SimStorage()
        survivor.cache, survivor.durable = self.cache, self.durable
        self.cache, self.durable = MemoryStorage(), MemoryStorage()
        return survivor
