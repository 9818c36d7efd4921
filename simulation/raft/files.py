"""A raft node's files, and the data that checks need: the batches as they were written, and the
end of the synced log."""

import errno
from collections.abc import Callable, Iterable
from random import Random

import attrs

from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.names import METADATA_DIRECTORY
from kwire.raftmeta.storage.storage import Bytes
from kwire.records.header import CRC_POS, headers, parse
from simulation.disk import PLENTY, SimDisk
from simulation.raft.memory_storage import MemoryStorage


@attrs.define
class Synced:
    """The part of the log that survives a power loss."""

    end_offset: int = 0


class Files:
    """A :class:`DiskStorage` that each ``load`` reopens, with a copy in memory."""

    blocks = True
    pending = False
    """True while there are unsynced calls that a snapshot of this node must not overtake."""
    directory = METADATA_DIRECTORY

    def __init__(self, disk: SimDisk | RealDisk) -> None:
        self.disk: SimDisk | RealDisk = disk
        self.cache = MemoryStorage()
        self.durable = Synced()
        self.has_rotted = False
        self.is_dead = False
        """True once the process has ended, after which ``close`` does nothing."""
        self._files: DiskStorage | None = None
        self._syncing = 0

    @property
    def files(self) -> DiskStorage:
        assert self._files is not None
        return self._files

    @property
    def batch_positions(self) -> dict[SnapshotId, list[int]]:
        return self.files.batch_positions

    def _open(self) -> DiskStorage:
        self._files = DiskStorage(self.disk, now_ms=1, config=LogConfig())
        return self._files

    def load(self, configured: VoterSet) -> Recovered:
        recovered = self._open().load(configured)
        self.is_dead = False
        self.cache = copy = MemoryStorage()
        copy.start_offset = copy.end_offset = recovered.log.start_offset
        while copy.end_offset < recovered.log.end_offset:
            data = self.files.read(copy.end_offset, recovered.log.end_offset, 1 << 20)
            copy.append(data, copy.end_offset)
        for snapshot in recovered.log.snapshots:
            size = self.files.snapshot_size(snapshot)
            copy.snapshots[snapshot] = bytes(self.files.read_snapshot(snapshot, 0, size))
        self.durable.end_offset = copy.end_offset
        return recovered

    def format(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        """Write the checkpoint 0-0 of a dynamic quorum."""
        self._open().store_snapshot(snapshot, chunks)
        self.files.close()

    # Writes of a node -----------------------------------------------------------------------
    def append(self, records: Bytes, base_offset: int) -> None:
        self.files.append(records, base_offset)
        self.cache.append(records, base_offset)

    def truncate(self, end_offset: int) -> None:
        self.files.truncate(end_offset)
        self.cache.truncate(end_offset)
        self.durable.end_offset = min(self.durable.end_offset, end_offset)

    def clean(self, start_offset: int) -> None:
        self.files.clean(start_offset)
        self.cache.clean(start_offset)

    def save_election(self, state: ElectionState, voters: VoterSet, kraft_version: int) -> None:
        self.files.save_election(state, voters, kraft_version)

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: Bytes) -> None:
        self.files.write_snapshot(snapshot, position, data)
        self.cache.write_snapshot(snapshot, position, data)

    def install_snapshot(self, snapshot: SnapshotId) -> SnapshotLoaded | SnapshotRefused:
        self.cache.install_snapshot(snapshot)
        return self.files.install_snapshot(snapshot)

    def store_snapshot(self, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
        pieces = list(chunks)
        self.files.store_snapshot(snapshot, pieces)
        self.cache.store_snapshot(snapshot, pieces)

    # Reads ----------------------------------------------------------------------------------
    def read(self, start_offset: int, end_offset: int, max_bytes: int) -> Bytes:
        return self.files.read(start_offset, end_offset, max_bytes)

    def log_size(self) -> int:
        return self.files.log_size()

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        return self.files.snapshot_size(snapshot)

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> Bytes:
        return self.files.read_snapshot(snapshot, position, max_bytes)

    # Syncing, and the end -------------------------------------------------------------------
    def start_sync(self) -> Callable[[], None] | None:
        self._syncing = self.cache.end_offset
        run = self.files.start_sync()
        if run is None:
            self.durable.end_offset = self._syncing
        return run

    def end_sync(self) -> None:
        self.files.end_sync()
        self.durable.end_offset = min(self._syncing, self.cache.end_offset)

    def sync(self) -> None:
        run = self.start_sync()
        if run is not None:
            run()
            self.end_sync()

    def shed(self) -> bool:
        return self.files.shed()

    def close(self) -> None:
        if not self.is_dead:
            self.files.close()
            self.is_dead = True

    # Faults of a simulated disk -------------------------------------------------------------
    @property
    def sim_disk(self) -> SimDisk:
        """The disk, which must be a :class:`SimDisk`."""
        assert isinstance(self.disk, SimDisk)
        return self.disk

    def die_after(self, changes: int | None) -> None:
        """Raise Killed after ``changes`` further changes to the disk, or never if it is None."""
        self.sim_disk.changes_left = changes

    def fail(self, random: Random) -> None:
        """Make one of the next calls of a random kind fail, or fill the disk soon."""
        disk = self.sim_disk
        if random.random() < 0.3:
            disk.capacity = disk._used_bytes() + random.randrange(2000)
            return
        kind = random.choice(["write", "sync", "rename", "remove", "create", "truncate"])
        error = OSError(random.choice([errno.EIO, errno.ENOSPC]), "the disk fails")
        disk.fail_at(kind, error, after=random.randrange(4))

    def repair(self) -> bool:
        """Repair the disk; return True if it had failed, in which case the process must end."""
        disk = self.sim_disk
        disk.mend()
        disk.capacity, disk.changes_left = PLENTY, None
        return disk.failed is not None

    def crash(self, random: Random, *, power: bool = True) -> None:
        """Lose power, or end only the process; a storage that was closed loses nothing."""
        ends = self.is_dead or not power
        self.disk = self.sim_disk.after_kill() if ends else self.sim_disk.power_loss(random)

    # Damage ---------------------------------------------------------------------------------
    def tear(self, data: bytes) -> None:
        """Append the bytes of an incomplete batch to the log."""
        names = [e.name for e in self.disk.entries(METADATA_DIRECTORY) if e.name.endswith(".log")]
        file = self.disk.open(f"{METADATA_DIRECTORY}/{max(names)}")
        file.write([data], file.size())
        file.sync()
        file.close()

    def rot_batch(self, random: Random, start_offset: int) -> bool:
        """Flip a bit of a synced batch at or after ``start_offset``; return False without one."""
        start = max(self.cache.start_offset, start_offset)
        end = self.files.known_synced_end or 0
        batches: list[tuple[str, int, int]] = []
        for path in self._paths(".log"):
            for position, header in headers(self.disk.read(path)):
                if start <= header.base_offset and header.next_offset <= end:
                    batches.append((path, position, header.size))
        return self._rot(batches, random)

    def rot_snapshot(self, random: Random) -> bool:
        """Flip a bit of a snapshot's first batch; return whether there is a snapshot."""
        paths = self._paths(".checkpoint")
        return self._rot([(path, 0, parse(self.disk.read(path)).size) for path in paths], random)

    def _rot(self, batches: list[tuple[str, int, int]], random: Random) -> bool:
        if not batches:
            return False
        path, position, size = random.choice(batches)
        position += random.randrange(CRC_POS, size)
        self.sim_disk.rot(path, position, 1 << random.randrange(8))
        return True

    def _paths(self, ending: str) -> list[str]:
        names = [entry.name for entry in self.disk.entries(METADATA_DIRECTORY)]
        return sorted(f"{METADATA_DIRECTORY}/{name}" for name in names if name.endswith(ending))

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace the content of a file."""
        self.disk.replace(f"{METADATA_DIRECTORY}/{name}", data, sync=True)
