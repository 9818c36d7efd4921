"""One suite for every kind of raft disk: in memory, simulated, and files (real and simulated)."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kwire.log.disk import RealDisk
from kwire.raftmeta.raft.control_records import control_batch, leader_change, voters_records
from kwire.raftmeta.raft.events import SnapshotLoaded, SnapshotRefused
from kwire.raftmeta.raft.log_state import EpochStart, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterSet
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage import MetadataStorage
from simulation.disk import Killed, SimDisk
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import voters_of
from simulation.raft.storage import SimStorage
from tests.support.raftmeta.storage import data, snapshot, sync

Reopen = Callable[[], MetadataStorage]


@pytest.fixture(params=["memory", "simulated", "files", "simulated files"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Opens the same storage again and again."""
    match request.param:
        case "memory":
            memory = MemoryStorage()
            return lambda: memory
        case "simulated":
            simulated = SimStorage()
            return lambda: simulated
        case "files":
            return lambda: DiskStorage(RealDisk(str(tmp_path)), now_ms=1)
        case _:
            disk = SimDisk()
            return lambda: DiskStorage(disk, now_ms=1)


def test_log_epochs_and_vote_survive_a_restart(reopen: Reopen) -> None:
    storage = reopen()
    storage.append(data(0, 3, 1) + data(3, 2, 1), 0)
    storage.append(data(5, 1, 4), 5)
    state = ElectionState(5, None, ReplicaKey(2, bytes(16)))
    storage.save_election(state, voters_of(1, 2), 0)
    sync(storage)
    storage.close()
    recovered = reopen().load(voters_of(1, 2))
    assert recovered.election == state
    assert (recovered.log.start_offset, recovered.log.end_offset) == (0, 6)
    assert recovered.log.epochs == [EpochStart(1, 0), EpochStart(4, 5)]
    assert recovered.history.latest == voters_of(1, 2)
    assert recovered.history.kraft_version == 0


def test_reads_whole_batches_and_at_least_one(reopen: Reopen) -> None:
    storage = reopen()
    first, second = data(0, 3, 1), data(3, 2, 1)
    storage.append(first + second, 0)
    assert bytes(storage.read(0, 5, 1)) == first
    assert bytes(storage.read(0, 5, 1000)) == first + second
    assert bytes(storage.read(0, 3, 1000)) == first
    assert bytes(storage.read(3, 5, 1000)) == second
    storage.close()


def test_truncated_log_takes_other_records(reopen: Reopen) -> None:
    storage = reopen()
    storage.append(data(0, 3, 1) + data(3, 2, 1), 0)
    storage.truncate(3)
    storage.append(data(3, 1, 2), 3)
    sync(storage)
    storage.close()
    recovered = reopen().load(VoterSet())
    assert recovered.log.end_offset == 4
    assert recovered.log.epochs == [EpochStart(1, 0), EpochStart(2, 3)]


def test_voters_of_log_and_snapshot(reopen: Reopen) -> None:
    storage = reopen()
    snapshot(storage, 0, 0, voters_of(1))
    first = [leader_change(1, voters_of(1), frozenset({1})), *voters_records(voters_of(1), 1)]
    storage.append(control_batch(first, base_offset=0, epoch=1, timestamp_ms=0), 0)
    added = voters_records(voters_of(1, 2), 1)[1:]
    storage.append(control_batch(added, base_offset=3, epoch=1, timestamp_ms=0), 3)
    sync(storage)
    storage.close()
    history = reopen().load(VoterSet()).history
    assert history.sets == [(-1, voters_of(1)), (2, voters_of(1)), (3, voters_of(1, 2))]
    assert history.kraft_version == 1


def test_log_before_a_snapshot_is_deleted(reopen: Reopen) -> None:
    storage = reopen()
    storage.append(data(0, 3, 1) + data(3, 2, 1), 0)
    snapshot(storage, 3, 1, voters_of(1))
    snapshot(storage, 5, 1, voters_of(1))
    storage.clean(5)
    sync(storage)
    storage.close()
    again = reopen()
    recovered = again.load(VoterSet())
    assert recovered.log.snapshots == [(5, 1)]
    assert recovered.log.end_offset == 5
    assert recovered.history.latest == voters_of(1)
    again.close()


def test_fetched_snapshot_replaces_the_log(reopen: Reopen) -> None:
    storage = reopen()
    content = snapshot(MemoryStorage(), 40, 3, voters_of(1, 3))
    storage.append(data(0, 3, 1), 0)
    named = SnapshotId(40, 3)
    storage.write_snapshot(named, 0, content[:50])
    storage.write_snapshot(named, 50, content[50:])
    loaded = storage.install_snapshot(named)
    assert isinstance(loaded, SnapshotLoaded)
    assert (loaded.voters, loaded.kraft_version) == (voters_of(1, 3), 1)
    storage.append(data(40, 1, 3), 40)
    sync(storage)
    assert storage.snapshot_size(named) == len(content)
    assert bytes(storage.read_snapshot(named, 10, 20)) == content[10:30]
    storage.close()
    recovered = reopen().load(VoterSet())
    assert (recovered.log.start_offset, recovered.log.end_offset) == (40, 41)
    assert recovered.log.last_epoch == 3
    assert recovered.history.latest == voters_of(1, 3)


def test_damaged_snapshot_is_not_installed(reopen: Reopen) -> None:
    storage = reopen()
    content = snapshot(MemoryStorage(), 40, 3, voters_of(1, 3))
    storage.append(data(0, 3, 1), 0)
    named = SnapshotId(40, 3)
    storage.write_snapshot(named, 0, content[:-1] + b"!")
    assert storage.install_snapshot(named) == SnapshotRefused(named)
    storage.append(data(3, 1, 1), 3)
    sync(storage)
    storage.close()
    recovered = reopen().load(VoterSet())
    assert (recovered.log.start_offset, recovered.log.end_offset) == (0, 4)
    assert recovered.log.latest_snapshot is None


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_keeps_what_was_synced(seed: int) -> None:
    """A vote or a record that was synced survives; what was not may or may not."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.append(data(0, 3, 1), 0)
    storage.save_election(ElectionState(2, 1), voters_of(1), 0)
    sync(storage)
    storage.append(data(3, 2, 2), 3)
    storage.save_election(ElectionState(3, None, ReplicaKey(1)), voters_of(1), 0)
    recovered = DiskStorage(disk.power_loss(Random(seed)), now_ms=2).load(voters_of(1))
    assert recovered.election == ElectionState(2, 1)
    assert recovered.log.end_offset in (3, 5)
    assert recovered.log.epochs[0] == EpochStart(1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_truncated_records_do_not_come_back_behind_newer_ones(seed: int) -> None:
    """Invariants 43 and 78: the new leader's records may be of an earlier epoch than the old ones.

    Epochs would still grow, so no node would notice.
    """
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    batches = [data(n, 40, 1 if n < 80 else 4) for n in range(0, 240, 40)]
    storage.append(b"".join(batches), 0)
    sync(storage)
    storage.truncate(80)
    storage.append(data(80, 40, 3), 80)
    recovered = DiskStorage(disk.power_loss(Random(seed)), now_ms=2).load(voters_of(1))
    assert [epoch.epoch for epoch in recovered.log.epochs] in ([1], [1, 3])


@pytest.mark.parametrize("seed", range(10))
def test_first_vote_of_a_new_node_survives_power_loss(seed: int) -> None:
    """Invariant 42: the metadata directory is as new as the vote in it."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.load(voters_of(1))
    storage.save_election(ElectionState(2, 1), voters_of(1), 0)
    sync(storage)
    recovered = DiskStorage(disk.power_loss(Random(seed)), now_ms=2).load(voters_of(1))
    assert recovered.election == ElectionState(2, 1)


@pytest.mark.parametrize("seed", range(10))
def test_unsynced_data_read_at_a_start_survives_power_loss(seed: int) -> None:
    """A killed process may leave in the page cache what was never synced."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.save_election(ElectionState(2, 1), voters_of(1), 0)
    sync(storage)
    disk.changes_left = 2  # the file is synced, renamed, and its directory is not
    storage.save_election(ElectionState(3, None, ReplicaKey(1)), voters_of(1), 0)
    with pytest.raises(Killed):
        sync(storage)
    disk = disk.after_kill()
    unsynced = DiskStorage(disk, now_ms=2)
    unsynced.append(data(0, 3, 3), 0)
    disk = disk.after_kill()
    recovered = DiskStorage(disk, now_ms=3).load(voters_of(1))
    assert (recovered.election.epoch, recovered.log.end_offset) == (3, 3)
    after = DiskStorage(disk.power_loss(Random(seed)), now_ms=4).load(voters_of(1))
    assert (after.election, after.log.end_offset) == (recovered.election, 3)
