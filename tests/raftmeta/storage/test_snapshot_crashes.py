"""Crashes at every step of replacing the log by a fetched snapshot."""

from pathlib import Path

import pytest

from kwire.errors import CorruptMessage
from kwire.log.disk import RealDisk
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.disk_storage import DiskStorage
from simulation.disk import Killed, SimDisk
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import voters_of
from tests.support.raftmeta.storage import data, snapshot, sync

OLD, NEW = voters_of(1, 2), voters_of(1, 3)


def crash_while_installing(
    own: bytes, fetched: SnapshotId, changes: int, lone_id: int | None = None
) -> tuple[bool, Recovered]:
    """Return whether the process died, and what the next one recovers.

    The log is ``own``, of epoch 1, and has a snapshot at 3 that names other voters.
    """
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1, lone_id=lone_id)
    storage.append(own, 0)
    snapshot(storage, 3, 1, OLD)
    storage.save_election(ElectionState(3, 3), OLD, 1)
    sync(storage)
    storage.write_snapshot(fetched, 0, snapshot(MemoryStorage(), *fetched, NEW))
    disk.changes_left = changes
    died = False
    try:
        storage.install_snapshot(fetched)
        sync(storage)
    except Killed:
        died = True
    restarted = DiskStorage(disk.after_kill(), now_ms=2, lone_id=lone_id)
    return died, restarted.load(VoterSet())


@pytest.mark.parametrize("lone_id", [None, 1, 4])
@pytest.mark.parametrize(
    ("count", "fetched"),
    [
        (5, SnapshotId(40, 3)),  # far behind the leader
        (50, SnapshotId(40, 3)),  # a longer log, but its alone: the leader's epoch is later
    ],
)
def test_crash_during_installation_leaves_the_log_or_the_snapshot(
    count: int, fetched: SnapshotId, lone_id: int | None
) -> None:
    """The voters are never those of the one with the log of the other.

    The first node of a quorum may be configured alone although others were added since; node 4 is
    about to join it, and its configuration names no other either.
    """
    changes, died = 0, True
    while died:
        own = data(0, count, 1)
        died, recovered = crash_while_installing(own, fetched, changes, lone_id)
        changes += 1
        log = recovered.log
        state = (log.start_offset, log.end_offset, log.snapshots, recovered.history.latest)
        after = (40, 40, [fetched], NEW)
        assert state in ((0, count, [SnapshotId(3, 1)], OLD), after), changes
    assert state == after
    assert changes > 5


def test_stale_snapshot_is_ignored() -> None:
    """Its removal may be lost in a crash although the removal of the log before it was not."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.append(data(0, 3, 1), 0)
    snapshot(storage, 3, 1, OLD)
    storage.append(data(3, 37, 3), 3)
    snapshot(storage, 40, 3, NEW)
    storage.append(data(40, 2, 3), 40)
    name = f"__cluster_metadata-0/{3:020d}-{1:010d}.checkpoint"
    stale_snapshot = disk.read(name)
    storage.clean(40)
    snapshot(storage, 42, 3, NEW)
    storage.append(data(42, 1, 3), 42)
    storage.clean(42)
    sync(storage)
    disk.write(name, stale_snapshot)
    recovered = DiskStorage(disk.after_kill(), now_ms=2).load(VoterSet())
    assert recovered.log.snapshots == [SnapshotId(42, 3)]
    assert recovered.history.latest == NEW
    assert name not in disk.files


def test_start_with_a_damaged_snapshot_keeps_the_log() -> None:
    """The start fails and changes nothing, so the right snapshot in its place is a repair."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.append(data(0, 3, 1), 0)
    content = snapshot(storage, 40, 3, NEW)
    sync(storage)
    name = f"__cluster_metadata-0/{40:020d}-{3:010d}.checkpoint"
    log = disk.read(f"__cluster_metadata-0/{0:020d}.log")
    disk.write(name, content[:-1])
    survivor = disk.after_kill()
    with pytest.raises(CorruptMessage):
        DiskStorage(survivor, now_ms=2).load(VoterSet())
    assert survivor.read(f"__cluster_metadata-0/{0:020d}.log") == log


def test_partial_files_of_abandoned_snapshots_are_removed() -> None:
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    content = snapshot(MemoryStorage(), 40, 3, NEW)
    for end_offset in (20, 30, 40):
        storage.write_snapshot(SnapshotId(end_offset, 3), 0, content[:50])
    assert len([name for name in disk.files if name.endswith(".part")]) == 1


def test_snapshots_are_not_kept_open(tmp_path: Path) -> None:
    """An open file takes its space on the disk, also after it was removed."""
    disk = RealDisk(str(tmp_path))
    storage = DiskStorage(disk, now_ms=1)
    before = len(disk.descriptors)
    snapshot(storage, 40, 3, NEW)
    for position in range(5):
        assert storage.read_snapshot(SnapshotId(40, 3), position, 1)
        assert storage.snapshot_size(SnapshotId(40, 3)) > 5
    assert len(disk.descriptors) == before
    storage.close()


def test_log_that_lost_the_records_of_an_earlier_segment_is_refused() -> None:
    """The start read nothing from the empty segment again and again, without an end."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.append(data(0, 5, 1), 0)
    storage.clean(0)  # It begins another segment.
    snapshot(storage, 5, 1, OLD)
    sync(storage)
    directory = "__cluster_metadata-0"
    for name in [entry.name for entry in disk.entries(directory)]:
        if name.endswith(".log"):
            disk.write(f"{directory}/{name}", b"")
    disk.remove(f"{directory}/synced-end-offset")
    with pytest.raises(CorruptMessage, match="damaged at offset 0"):
        DiskStorage(disk, now_ms=2).load(VoterSet())
