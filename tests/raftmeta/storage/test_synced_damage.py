"""Bits that flip in a metadata log that was synced, and the torn end that a crash leaves."""

import errno
from contextlib import suppress
from random import Random

import pytest

from kwire.errors import CorruptMessage, KafkaStorageError
from kwire.log import recovery
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.types import TopicPartition
from simulation.disk import Killed, SimDisk
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import voters_of
from tests.support.raftmeta.storage import data, snapshot, sync

LOG = f"__cluster_metadata-0/{0:020d}.log"
VOTERS = voters_of(1)
BATCHES = [data(n, 1, 1) for n in range(6)]


def start(disk: SimDisk) -> tuple[DiskStorage, int]:
    """Open a node's storage; return it and its log end offset."""
    storage = DiskStorage(disk, now_ms=1)
    return storage, storage.load(VOTERS).log.end_offset


def append(storage: DiskStorage, first: int, end: int) -> None:
    storage.append(b"".join(BATCHES[first:end]), first)
    sync(storage)


def in_batch(number: int) -> int:
    """Return the position of a byte in the middle of a batch."""
    return sum(map(len, BATCHES[:number])) + 65


@pytest.mark.parametrize("stop", ["clean", "start", "snapshot"])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_damage_in_the_synced_log_is_refused_and_nothing_is_cut(stop: str, batch: int) -> None:
    """Invariant 42: a clean stop, a start and a snapshot each prove that all was synced."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 4)
    if stop == "clean":
        storage.close()
    elif stop == "snapshot":
        snapshot(storage, 4, 1, VOTERS)
    disk = disk.after_kill()
    if stop == "start":
        start(disk)
        disk = disk.after_kill()
    disk.rot(LOG, in_batch(batch))
    before = disk.read(LOG)
    for _ in range(2):  # the second start is not easier than the first
        with pytest.raises(CorruptMessage, match=rf"{LOG} is damaged at byte .*offset {batch} "):
            DiskStorage(disk, now_ms=2)
        disk = disk.after_kill()
    assert disk.read(LOG) == before


@pytest.mark.parametrize("seed", range(10))
def test_damage_that_a_crash_can_leave_is_cut(seed: int) -> None:
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 2)
    storage.close()
    disk = disk.after_kill()
    storage, end_offset = start(disk)
    assert end_offset == 2
    storage.append(b"".join(BATCHES[2:6]), 2)
    _, end_offset = start(disk.power_loss(Random(seed)))
    assert 2 <= end_offset <= 6
    disk.rot(LOG, in_batch(3))
    assert start(disk.after_kill())[1] == 3


def test_long_run_leaves_little_unprotected() -> None:
    """A node that dies after thousands of records does not lose the early ones."""
    disk = SimDisk()
    storage, _ = start(disk)
    for offset in range(0, 1500, 300):
        storage.append(data(offset, 300, 1), offset)
        sync(storage)
    disk = disk.after_kill()
    disk.rot(LOG, 65)
    with pytest.raises(CorruptMessage, match="synced up to offset 1200"):
        DiskStorage(disk, now_ms=2)


def test_records_that_raft_cuts_are_not_claimed_to_be_synced() -> None:
    """Invariant 42: what follows a cut may be torn by a crash, and a node starts with that."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 4)
    storage.close()
    disk = disk.after_kill()
    storage, _ = start(disk)
    storage.truncate(2)
    storage.append(b"".join(BATCHES[2:4]), 2)
    disk.rot(LOG, in_batch(2))
    assert start(disk.after_kill())[1] == 2


@pytest.mark.parametrize("changes", range(12))
def test_log_replaced_by_a_snapshot_may_be_torn(changes: int) -> None:
    """The snapshot wins over the log before it, whatever became of that."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 4)
    storage.close()
    disk = disk.after_kill()
    storage, _ = start(disk)
    fetched = SnapshotId(40, 3)
    storage.write_snapshot(fetched, 0, snapshot(MemoryStorage(), *fetched, VOTERS))
    storage.append(b"".join(BATCHES[4:6]), 4)
    disk.changes_left = changes
    with suppress(Killed):
        storage.install_snapshot(fetched)
    disk = disk.power_loss(Random(changes))
    assert start(disk)[1] in (4, 5, 6, 40)


def as_another_program(disk: SimDisk, cut: int, records: bytes) -> None:
    """Truncate the log and append in another epoch, as Apache Kafka does, without kwire's files."""
    log = recovery.open_log(
        disk, "__cluster_metadata-0", TopicPartition("__cluster_metadata", 0), now_ms=2
    )
    log.truncate_to(cut)
    log.append_follower(records)
    log.flush_state.flush()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("cut", "epochs"), [(2, (2,)), (2, (1, 2)), (3, (2, 2))])
def test_log_that_another_program_cut_may_be_torn_behind_the_cut(
    clean: bool, cut: int, epochs: tuple[int, ...]
) -> None:
    """A leader of a later epoch had other records; a crash tore what came in their place."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 4)
    if clean:
        storage.close()
    else:
        start(disk)
    disk = disk.after_kill()
    records = b"".join(data(cut + n, 1, epoch) for n, epoch in enumerate(epochs))
    as_another_program(disk, cut, records)
    disk.rot(LOG, in_batch(cut))
    assert start(disk.after_kill())[1] == cut


def test_log_that_another_program_went_on_with_keeps_what_was_synced() -> None:
    """Its records come after the synced ones, so its crash cannot have damaged those."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 4)
    storage.close()
    disk = disk.after_kill()
    as_another_program(disk, 4, data(4, 1, 2))
    disk.rot(LOG, in_batch(3))
    with pytest.raises(CorruptMessage, match="synced up to offset 4"):
        DiskStorage(disk.after_kill(), now_ms=3)


@pytest.mark.parametrize("seed", range(10))
def test_pages_of_a_failed_fsync_are_written_again_at_a_start(seed: int) -> None:
    """Invariant 42: the kernel takes the pages of an fsync that failed for clean."""
    disk = SimDisk()
    storage, _ = start(disk)
    append(storage, 0, 2)
    storage.append(b"".join(BATCHES[2:6]), 2)
    disk.fail_at("sync", OSError(errno.EIO, "the disk fails"))
    with pytest.raises((OSError, KafkaStorageError)):
        sync(storage)
    disk = disk.after_kill()
    storage, end_offset = start(disk)
    assert start(disk.power_loss(Random(seed)))[1] == end_offset == 6
