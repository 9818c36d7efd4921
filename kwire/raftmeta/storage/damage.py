"""Finds damage in a node's own metadata log and snapshots before the node serves them.

Followers reject a damaged batch by its CRC and fetch it again, which also counts as a fetch for
check quorum. A leader that kept serving it would stay the leader although no follower makes
progress. So its node ends instead, as after a disk failure, and another voter leads. The CRC covers
a batch from its attributes onwards; the base offset is compared with the end of the previous batch.
"""

import struct
from typing import Final

from kwire.errors import KafkaStorageError
from kwire.raftmeta.raft.control_records import is_whole
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.names import checkpoint_name
from kwire.records.crc import crc32c
from kwire.records.header import ATTRIBUTES_POS, HEADER_SIZE, LENGTH_END, Buffer

REMEDY: Final = (
    "if other voters have the log, remove this node from the voters, format its metadata directory "
    "anew and let it join again; a lone node needs the directory from a backup"
)
LOST_REMEDY: Final = (
    "restore the directory from a backup; only if no other voter has the log, deleting "
    "quorum-state and synced-end-offset lets the node begin with the newest snapshot, without any "
    "later change"
)
_FIELDS: Final = struct.Struct(">qi4xbI2xi")
"""Base offset, length, magic, CRC and last offset delta; a fetch may have thousands of batches."""


def check_log(data: Buffer, start_offset: int) -> None:
    """Raise KafkaStorageError if a batch is damaged or no batch is complete.

    The last batch may be cut off, as in a Fetch; ``start_offset`` may lie inside the first batch.
    """
    offset = first_damaged(data, start_offset)
    if offset is not None:
        raise KafkaStorageError(f"the metadata log is damaged at offset {offset}; {REMEDY}")


def first_damaged(data: Buffer, start_offset: int) -> int | None:
    """Return the offset at which the first damaged batch should begin; None if none is damaged."""
    view = memoryview(data)
    position, end, offset = 0, len(view), start_offset
    while end - position >= HEADER_SIZE:
        base, length, magic, crc, last_offset_delta = _FIELDS.unpack_from(view, position)
        following = position + length + LENGTH_END
        fits = base == offset or (position == 0 and base < offset <= base + last_offset_delta)
        if magic != 2 or length < HEADER_SIZE - LENGTH_END or not fits:
            return offset
        if following > end:
            break
        if crc32c(view[position + ATTRIBUTES_POS : following]) != crc:
            return offset
        position, offset = following, base + last_offset_delta + 1
    return offset if end and not position else None


def check_snapshot(snapshot: SnapshotId, data: Buffer) -> None:
    """Raise KafkaStorageError unless the snapshot is complete and undamaged."""
    if not is_whole(data):
        raise of_snapshot(snapshot)


def of_snapshot(snapshot: SnapshotId) -> KafkaStorageError:
    """Return the error that ends the node of a damaged snapshot."""
    return KafkaStorageError(f"{checkpoint_name(snapshot)} is damaged; {REMEDY}")
