"""The records of `__share_group_state`: snapshots of states, and updates of the last snapshot.

A tombstone has the key of a snapshot. All records with the same key are needed, because an update
contains only the batches that changed.
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar

from kwire.codec.compile import decode, encode
from kwire.codec.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from kwire.coordinator.decision import Record
from kwire.share.keys import SharePartition
from kwire.share.persister import StateBatch
from kwire.share.state.batches import merge
from kwire.share.state.model import ShareState, StateWrite

_PREFIX: Final = struct.Struct(">h")
_SNAPSHOT: Final = 0
_UPDATE: Final = 1
_VERSION: Final = 0
_NO_EPOCH: Final = 0
"""The state epoch of an update, which does not store it."""

_Batch: TypeAlias = ShareSnapshotValue.StateBatch | ShareUpdateValue.StateBatch
B = TypeVar("B", ShareSnapshotValue.StateBatch, ShareUpdateValue.StateBatch)


def store(record: Record) -> tuple[bytes, bytes | None]:
    """Encode a record's key and value."""
    kind = _SNAPSHOT if isinstance(record.key, ShareSnapshotKey) else _UPDATE
    key = _PREFIX.pack(kind) + encode(record.key, 0)
    if record.value is None:
        return key, None
    return key, _PREFIX.pack(_VERSION) + encode(record.value, _VERSION)


def load(key: bytes, value: bytes | None) -> Record | None:
    """Decode a stored record; None if kwire does not use it. Raises ValueError if it is damaged."""
    if len(key) < _PREFIX.size or (value is not None and len(value) < _PREFIX.size):
        raise ValueError("record without a type")
    (kind,) = _PREFIX.unpack_from(key)
    if kind == _SNAPSHOT:
        return _load(ShareSnapshotKey, ShareSnapshotValue, key, value)
    if kind == _UPDATE:
        return _load(ShareUpdateKey, ShareUpdateValue, key, value)
    return None


def _load(
    key_type: type[ShareSnapshotKey | ShareUpdateKey],
    value_type: type[ShareSnapshotValue | ShareUpdateValue],
    key: bytes,
    value: bytes | None,
) -> Record:
    decoded_key = decode(key_type, key[_PREFIX.size :], 0)
    if value is None:
        return Record(decoded_key)
    (version,) = _PREFIX.unpack_from(value)
    if version != _VERSION:
        raise ValueError(f"value version {version}")
    return Record(decoded_key, decode(value_type, value[_PREFIX.size :], version), version)


def share_partition(key: ShareSnapshotKey | ShareUpdateKey) -> SharePartition:
    return SharePartition(key.group_id, key.topic_id, key.partition)


def snapshot(of: SharePartition, state: ShareState) -> Record:
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_ms,
        write_timestamp=state.write_ms,
        state_batches=_to_schema(ShareSnapshotValue.StateBatch, state.batches),
    )
    return Record(_snapshot_key(of), value, _VERSION)


def update(of: SharePartition, snapshot_epoch: int, write: StateWrite) -> Record:
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=write.leader_epoch,
        start_offset=write.start_offset,
        delivery_complete_count=write.delivery_complete_count,
        state_batches=_to_schema(
            ShareUpdateValue.StateBatch, merge((), write.batches, write.start_offset)
        ),
    )
    key = ShareUpdateKey(group_id=of.group_id, topic_id=of.topic_id, partition=of.partition)
    return Record(key, value, _VERSION)


def tombstone(of: SharePartition) -> Record:
    return Record(_snapshot_key(of))


def _snapshot_key(of: SharePartition) -> ShareSnapshotKey:
    return ShareSnapshotKey(group_id=of.group_id, topic_id=of.topic_id, partition=of.partition)


def state_of(value: ShareSnapshotValue) -> ShareState:
    """Return the state in a snapshot."""
    return ShareState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=_batches(value.state_batches),
        create_ms=value.create_timestamp,
        write_ms=value.write_timestamp,
    )


def write_of(value: ShareUpdateValue) -> StateWrite:
    """Return the write in an update."""
    return StateWrite(
        _NO_EPOCH,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _batches(value.state_batches),
    )


def _batches(stored: Iterable[_Batch]) -> list[StateBatch]:
    return [
        StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
        for b in stored
    ]


def _to_schema(kind: type[B], batches: Iterable[StateBatch]) -> list[B]:
    return [
        kind(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    ]
