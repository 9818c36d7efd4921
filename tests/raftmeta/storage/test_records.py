"""Metadata records between objects and bytes."""

from typing import Any

import pytest

from kwire.codec.messages.control_records import SnapshotFooterRecord
from kwire.codec.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    TopicRecord,
)
from kwire.errors import CorruptMessage
from kwire.raftmeta.raft.control_records import control_batch
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.records import (
    SNAPSHOT_BATCH_RECORDS,
    SnapshotReader,
    UnknownRecord,
    pack,
    read_batches,
    snapshot_chunks,
    unpack,
)
from kwire.records.header import headers


def test_record_bytes_are_kafkas() -> None:
    """The bytes are from a bootstrap.checkpoint of Apache Kafka 4.3.1."""
    record = FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert pack(record) == bytes.fromhex("010c00116d657461646174612e76657273696f6e001e00")
    assert unpack(pack(record)) == record


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({"fenced": -1}, 0),
        ({"in_controlled_shutdown": 1}, 1),
        ({"log_dirs": [bytes(16)]}, 2),
        ({"cordoned_log_dirs": []}, 3),
    ],
)
def test_registration_change_has_the_lowest_version_with_its_fields(
    changes: dict[str, Any], version: int
) -> None:
    record = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, **changes)
    assert pack(record)[2] == version
    assert unpack(pack(record)) == record


@pytest.mark.parametrize(
    "value", [None, b"", b"\x01", b"\x02\x0c\x00", b"\x01\x7f\x00", b"\x01\x0c\x09", b"\xff" * 9]
)
def test_unknown_record_is_an_error(value: bytes | None) -> None:
    with pytest.raises(UnknownRecord):
        unpack(value)


@pytest.mark.parametrize("damage", ["a bit", "the last byte", "the footer", "everything"])
def test_a_damaged_snapshot_is_not_read(damage: str) -> None:
    """KIP-630: the batches' CRCs are checked, and the footer shows that nothing is missing."""
    named = SnapshotId(3, 1)
    topic = TopicRecord(name="found-out", topic_id=bytes(16))
    chunks = list(
        snapshot_chunks(
            named, [[topic]], voters=VoterSet(), kraft_version=0, last_timestamp_ms=1, now_ms=2
        )
    )
    whole = b"".join(chunks)
    data = {
        "a bit": whole.replace(b"found-out", b"found-ouu"),
        "the last byte": whole[:-1],
        "the footer": b"".join(chunks[:-1]),
        "everything": b"",
    }[damage]
    with pytest.raises(CorruptMessage):
        list(SnapshotReader(named, data).records())


def test_a_damaged_batch_of_the_log_is_not_read() -> None:
    """Kafka checks the CRC of what it hands to its listeners."""
    data = control_batch([SnapshotFooterRecord(version=0)], base_offset=0, epoch=1, timestamp_ms=2)
    assert len(list(read_batches(data))) == 1
    with pytest.raises(CorruptMessage):
        list(read_batches(data[:-1] + bytes([data[-1] ^ 1])))


def test_snapshot_round_trips_with_offsets_of_its_own() -> None:
    topics = [
        TopicRecord(name=f"t{n}", topic_id=n.to_bytes(16, "big"))
        for n in range(SNAPSHOT_BATCH_RECORDS + 3)
    ]
    named = SnapshotId(1000, 4)
    chunks = snapshot_chunks(
        named, [topics], voters=VoterSet(), kraft_version=0, last_timestamp_ms=1, now_ms=2
    )
    data = b"".join(chunks)
    assert list(SnapshotReader(named, data).records()) == topics
    batches = [(h.base_offset, h.next_offset, h.leader_epoch) for _, h in headers(data)]
    assert batches == [(0, 1, 4), (1, 501, 4), (501, 504, 4), (504, 505, 4)]
