"""A bit that flips on the disk of a running node: no damaged data is served or delivered."""

import pytest

from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.codec.messages.metadata_records import NoOpRecord
from kwire.errors import CorruptMessage, KafkaStorageError, NotController
from kwire.raftmeta.raft.events import LogSlice, Reply, SnapshotSlice
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.damage import first_damaged
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage_turn import write
from kwire.records.header import headers
from simulation.disk import SimDisk
from simulation.raft.quorums import quorum_of_one, voters_of
from tests.support.raftmeta.storage import data, snapshot, sync

LOG = f"__cluster_metadata-0/{0:020d}.log"
CHECKPOINT = f"__cluster_metadata-0/{4:020d}-{1:010d}.checkpoint"
BATCHES = [data(n, 1, 1) for n in range(4)]


def serve_fetch(storage: DiskStorage, start_offset: int, max_bytes: int = 1000) -> bytes:
    """Return what a leader answers to a Fetch."""
    piece = LogSlice(start_offset, 4, max_bytes)
    part = FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=0, high_watermark=4, records=piece
    )
    topic = FetchResponse.FetchableTopicResponse(partitions=[part])
    write(storage, [Reply("token", FetchResponse(responses=[topic]))])
    return bytes(part.records)


def serve_snapshot(storage: DiskStorage, snapshot_id: SnapshotId, position: int = 0) -> bytes:
    """Return what a leader answers to a FetchSnapshot."""
    kind = FetchSnapshotResponse.TopicSnapshot.PartitionSnapshot
    named = kind.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)
    piece = SnapshotSlice(snapshot_id, position, 50)
    part = kind(index=0, snapshot_id=named, size=0, position=0, unaligned_records=piece)
    topic = FetchSnapshotResponse.TopicSnapshot(name="__cluster_metadata", partitions=[part])
    write(storage, [Reply("token", FetchSnapshotResponse(topics=[topic]))])
    return bytes(part.unaligned_records)


def serve_all(storage: DiskStorage, snapshot_id: SnapshotId) -> bytes:
    """Return the snapshot as a follower gets it, piece by piece."""
    data = b""
    while len(data) < storage.snapshot_size(snapshot_id):
        data += serve_snapshot(storage, snapshot_id, len(data))
    return data


def running(disk: SimDisk) -> DiskStorage:
    storage = DiskStorage(disk, now_ms=1)
    storage.load(voters_of(1))
    return storage


def full(disk: SimDisk) -> DiskStorage:
    storage = running(disk)
    storage.append(b"".join(BATCHES), 0)
    sync(storage)
    return storage


def test_leader_does_not_serve_a_batch_that_rotted_and_does_not_start_again() -> None:
    """Invariant 44: followers refuse it, and would fetch it again for ever."""
    disk = SimDisk()
    storage = full(disk)
    disk.rot(LOG, len(BATCHES[0]) * 2 + 65)
    limit = len(BATCHES[0]) + 20
    assert serve_fetch(storage, 0, limit) == b"".join(BATCHES)[:limit]
    for offset in (0, 2):
        with pytest.raises(KafkaStorageError, match="damaged at offset 2; if other voters"):
            serve_fetch(storage, offset)
    assert serve_fetch(storage, 3) == BATCHES[3]
    storage.close()
    with pytest.raises(CorruptMessage, match="offset 2"):
        running(disk.after_kill())


@pytest.mark.parametrize("position", [70, 16, 8, 180, -3])
def test_leader_does_not_serve_a_snapshot_that_rotted(position: int) -> None:
    """Invariant 44: a follower that needs it would refuse all of it, again and again.

    Damage between two fetches is noticed by the second one, before its last piece.
    """
    disk = SimDisk()
    storage = full(disk)
    whole = snapshot(storage, 4, 1, voters_of(1))
    snapshot_id = SnapshotId(4, 1)
    assert serve_all(storage, snapshot_id) == whole
    disk.rot(CHECKPOINT, position % len(whole))
    with pytest.raises(KafkaStorageError, match="checkpoint is damaged; if other voters"):
        serve_all(storage, snapshot_id)


@pytest.mark.parametrize("cut", [1, 60, 100, 1000])
def test_leader_does_not_serve_a_snapshot_that_was_cut(cut: int) -> None:
    """Invariant 44: also if the cut is between two batches."""
    disk = SimDisk()
    storage = full(disk)
    whole = snapshot(storage, 4, 1, voters_of(1))
    cuts = [len(whole) - cut, *(pos for pos, _ in headers(whole) if cut == 1 and pos)]
    for size in cuts:
        file = disk.open(CHECKPOINT)
        file.truncate(max(size, 0))
        file.close()
        with pytest.raises(KafkaStorageError, match="checkpoint is damaged"):
            serve_all(storage, SnapshotId(4, 1)) or serve_snapshot(storage, SnapshotId(4, 1))


def test_position_that_no_follower_has_reached_is_served_unchecked() -> None:
    """The position of the first whole batch is unknown; the receiver checks the whole snapshot."""
    disk = SimDisk()
    storage = full(disk)
    whole = snapshot(storage, 4, 1, voters_of(1))
    assert serve_snapshot(storage, SnapshotId(4, 1), 150) == whole[150:200]


@pytest.mark.parametrize("end_offset", [0, 2, 4])
def test_start_with_a_rotten_snapshot_is_refused(end_offset: int) -> None:
    """Invariant 46: also the oldest one is checked, which has the voters before the log."""
    disk = SimDisk()
    storage = full(disk)
    for end in (0, 2, 4):
        snapshot(storage, end, 0 if end == 0 else 1, voters_of(1, 2, 3))
    storage.close()
    epoch = 0 if end_offset == 0 else 1
    name = f"{end_offset:020d}-{epoch:010d}.checkpoint"
    disk = disk.after_kill()
    disk.rot(f"__cluster_metadata-0/{name}", 80)
    with pytest.raises(CorruptMessage, match=name):
        running(disk)


def test_start_checks_batches_before_the_newest_snapshot() -> None:
    """Invariant 43: recovery begins after them, but they are served and name voters."""
    disk = SimDisk()
    storage = full(disk)
    snapshot(storage, 2, 1, voters_of(1))
    storage.clean(0)
    storage.append(data(4, 1, 1), 4)
    sync(storage)
    snapshot(storage, 5, 1, voters_of(1))
    storage.close()
    disk = disk.after_kill()
    disk.rot(LOG, 65)
    with pytest.raises(CorruptMessage, match="damaged at offset 0; if other voters"):
        running(disk)


def test_flip_of_any_checked_bit_is_detected() -> None:
    run = b"".join(BATCHES)
    size = len(BATCHES[0])
    assert first_damaged(run, 0) is None
    assert first_damaged(run[:-1], 0) is None
    for position in (*range(12), *range(16, size)):
        for bit in range(8):
            rotten = bytearray(run)
            rotten[size + position] ^= 1 << bit
            offset = first_damaged(rotten, 0)
            if offset is None:  # the length names more than was read: nothing behind is given
                offset = first_damaged(rotten[size:], 1)
            assert offset == 1


async def test_node_ends_instead_of_delivering_damaged_records() -> None:
    """Invariant 43: its state machine is not given other records than were committed."""
    disk = SimDisk()
    storage = running(disk)

    read = storage.read

    def rotten(start_offset: int, end_offset: int, max_bytes: int) -> bytes:
        data = bytearray(read(start_offset, end_offset, max_bytes))
        data[-1] ^= 1
        return bytes(data)

    with pytest.RaisesGroup(KafkaStorageError, NotController, flatten_subgroups=True):
        async with quorum_of_one(storage=storage) as quorum:
            await quorum.delivery.wait_delivered(1)
            storage.read = rotten  # type: ignore[method-assign]
            await quorum.append_nowait([NoOpRecord()], epoch=1).wait()
