"""Records, batches, syncs and snapshots for tests of the storage of a raft log."""

from kwire.codec.messages.metadata_records import TopicRecord
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.records import snapshot_chunks
from kwire.raftmeta.storage.storage import MetadataStorage
from kwire.records.build import New, batch


def data(base_offset: int, count: int, epoch: int) -> bytes:
    """Return a batch of ``count`` records."""
    records = [New(None, b"value %d" % n) for n in range(count)]
    return batch(records, timestamp_ms=7, base_offset=base_offset, leader_epoch=epoch)


def sync(storage: MetadataStorage) -> None:
    """Sync the appended records, if there are any that were not."""
    run = storage.start_sync()
    if run is not None:
        run()
        storage.end_sync()


def snapshot(storage: MetadataStorage, end_offset: int, epoch: int, voters: VoterSet) -> bytes:
    """Store a snapshot without metadata records and return its bytes."""
    named = SnapshotId(end_offset, epoch)
    chunks = list(
        snapshot_chunks(named, [], voters=voters, kraft_version=1, last_timestamp_ms=0, now_ms=0)
    )
    storage.store_snapshot(named, chunks)
    return b"".join(chunks)


def topic(number: int) -> TopicRecord:
    """Return a metadata record."""
    return TopicRecord(name=f"topic-{number}", topic_id=bytes(15) + bytes([number]))
