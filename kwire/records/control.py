"""Control records: transaction markers, and the quorum's own records.

A control batch holds one kind of record. The key is (version, type); the value is one of the
messages in :mod:`kwire.codec.messages.control_records`.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from kwire.records.build import New, batch

_KEY: Final = struct.Struct(">hh")
_END_TXN: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type in a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Control(NamedTuple):
    """The decoded key of a control record.

    `type` is a plain number, because readers skip records whose type they do not know.
    """

    version: int
    type: int


def control_key(kind: ControlType) -> bytes:
    return _KEY.pack(0, kind)


def parse_key(key: bytes | None) -> Control | None:
    """Decode a control record's key; return None if it is too short."""
    if key is None or len(key) < _KEY.size:
        return None
    return Control(*_KEY.unpack_from(key))


def end_txn_value(coordinator_epoch: int) -> bytes:
    return _END_TXN.pack(0, coordinator_epoch)


def parse_end_txn(value: bytes | None) -> int | None:
    """Return the coordinator epoch in a transaction marker; None if the value is too short."""
    if value is None or len(value) < _END_TXN.size:
        return None
    _, epoch = _END_TXN.unpack_from(value)
    return int(epoch)


def end_txn_marker(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """Build the batch that ends a transaction in one partition."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return batch(
        [New(control_key(kind), end_txn_value(coordinator_epoch))],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
