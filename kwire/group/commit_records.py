"""The records of committed offsets: their encoding in a draft, and their load.

The records of one request have the group, the topic and the time in common, so :func:`add_commits`
encodes these once and packs only the numbers for each partition, without message objects.
:func:`parse_commit` reads such a record at a load. The authorities are :func:`offset_record` with
:func:`kwire.group.records.store`, and :func:`kwire.group.records.load`: bytes and packed offsets
must be theirs (``tests/group/test_commit_records.py``). Offsets with an expiry time are encoded
through them, and offsets with metadata are decoded through them.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue
from kwire.codec.primitives import uvarint
from kwire.coordinator.decision import Record
from kwire.coordinator.draft import Draft
from kwire.errors import OffsetMetadataTooLarge
from kwire.group.offsets import NO_EXPIRY, GroupChange, Packed, pack, pack_numbers
from kwire.group.records import OFFSET_VERSION, OFFSET_WITH_EXPIRY_VERSION, store
from kwire.records.build import varint
from kwire.types import ZERO_UUID

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = CommitTopic.OffsetCommitRequestPartition
CommitResult = OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition

CommittedOffset = tuple[int, int, int, str | None]
"""A partition, its offset, the leader's epoch, and metadata."""

_KEY_TYPE: Final = 1
_KEY_START: Final = Struct(">hh")
_SIZE: Final = Struct(">h")
_PARTITION: Final = Struct(">i")
_VALUE_START: Final = Struct(">hqi")
"""A value's version, the offset and the leader's epoch; the metadata follow."""
_MIDDLE: Final = Struct(">iBhqiB")
"""The partition, which ends the key; the value's size, its version, the offset, the leader's epoch,
and the size of the metadata."""
_NO_METADATA: Final = 1
_STORED: Final = Struct(">hqiBq3s16s")
"""A value without metadata: its version, the offset, the leader's epoch, the size of the metadata,
the time, and the topic's id after its tag.
"""
_TIME: Final = Struct(">q")
_TOPIC_ID_TAG: Final = b"\1\0\x10"
"""One tagged field with the tag 0, 16 bytes long."""
_NO_TAGS: Final = b"\0"
_NO_HEADERS: Final = b"\0"
_FLAGS_AND_TIME: Final = b"\0\0"
"""A record's attributes, and its timestamp relative to that of the batch."""


def offset_record(
    group_id: str, topic: tuple[str, bytes], committed: CommittedOffset, now_ms: int
) -> Record:
    """Return the record of an offset that does not expire; ``topic`` is its name and id."""
    name, topic_id = topic
    partition, offset, leader_epoch, metadata = committed
    key = OffsetCommitKey(group=group_id, topic=name, partition=partition)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=NO_EXPIRY,
        topic_id=topic_id,
    )
    return Record(key, value)


def add_commits(
    draft: Draft[GroupChange], topic: tuple[str, bytes], offsets: Iterable[CommittedOffset]
) -> None:
    """Add the commits of a topic's partitions; ``topic`` is its name and id."""
    (name, topic_id), change, wall_ms = topic, draft.change, draft.wall_ms
    group, encoded_name = change.group_id.encode(), name.encode()
    key_start = _KEY_START.pack(_KEY_TYPE, len(group)) + group + _SIZE.pack(len(encoded_name))
    key_start += encoded_name
    head = varint(len(key_start) + _PARTITION.size) + key_start
    tags = _NO_TAGS if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id
    value_end = _TIME.pack(wall_ms) + tags
    value_size = _VALUE_START.size + 1 + len(value_end)  # Its varint takes one byte.
    tail = value_end + _NO_HEADERS
    size = len(_FLAGS_AND_TIME) + len(head) + _MIDDLE.size + len(tail)
    payload, committed = draft.payload, change.committed.setdefault(name, {})
    front, delta_size, pack_middle = b"", 0, _MIDDLE.pack
    for partition, offset, leader_epoch, metadata in offsets:
        numbers = pack_numbers(offset, leader_epoch, wall_ms, NO_EXPIRY, topic_id)
        if metadata:
            text = metadata.encode()
            committed[partition] = numbers + text
            value = _VALUE_START.pack(OFFSET_VERSION, offset, leader_epoch)
            value += uvarint(len(text) + 1) + text + value_end
            draft.add(key_start + _PARTITION.pack(partition), value)
            continue
        committed[partition] = numbers
        delta = varint(draft.count)
        if len(delta) != delta_size:
            delta_size = len(delta)
            front = varint(size + delta_size) + _FLAGS_AND_TIME
        middle = pack_middle(
            partition, value_size << 1, OFFSET_VERSION, offset, leader_epoch, _NO_METADATA
        )
        payload += front + delta + head + middle + tail
        draft.count += 1


def parse_commit(key: bytes, value: bytes | None) -> tuple[str, str, int, Packed] | None:
    """Return the group, the topic, the partition and the offset of a stored commit.

    Return None for a record of another kind, or in another form than those of :func:`add_commits`.
    """
    if value is None or len(value) != _STORED.size or len(key) < _KEY_START.size:
        return None
    kind, group_size = _KEY_START.unpack_from(key)
    version, offset, leader_epoch, metadata, time_ms, tag, topic_id = _STORED.unpack(value)
    if (kind, version, metadata, tag) != (_KEY_TYPE, OFFSET_VERSION, _NO_METADATA, _TOPIC_ID_TAG):
        return None
    topic_at = _KEY_START.size + group_size
    name_at, end = topic_at + _SIZE.size, len(key) - _PARTITION.size
    if not _KEY_START.size <= topic_at <= name_at <= end:
        return None
    if _SIZE.unpack_from(key, topic_at)[0] != end - name_at:
        return None
    try:
        group, name = key[_KEY_START.size : topic_at].decode(), key[name_at:end].decode()
    except UnicodeDecodeError:
        return None
    packed = pack_numbers(offset, leader_epoch, time_ms, NO_EXPIRY, topic_id)
    return group, name, _PARTITION.unpack_from(key, end)[0], packed


def add_requested(
    draft: Draft[GroupChange],
    request: OffsetCommitRequest,
    topic: CommitTopic,
    partitions: Iterable[CommitPartition],
    metadata_bytes_max: int,
) -> list[CommitResult]:
    """Add the commits of some of a topic's partitions in a request; return their results."""
    results: list[CommitResult] = []
    offsets: list[CommittedOffset] = []
    for each in partitions:
        partition, metadata, code = each.partition_index, each.committed_metadata, 0
        if metadata and len(metadata) > metadata_bytes_max:
            code = OffsetMetadataTooLarge.code
        else:
            offsets.append(
                (partition, each.committed_offset, each.committed_leader_epoch, metadata)
            )
        results.append(CommitResult(partition_index=partition, error_code=code))
    named = topic.name, topic.topic_id
    if request.retention_time_ms < 0:
        add_commits(draft, named, offsets)
        return results
    committed = draft.change.committed.setdefault(topic.name, {})
    for offset in offsets:
        record = expiring_record(request, named, offset, draft.wall_ms)
        draft.add(*store(record))
        committed[offset[0]] = pack(record.value)
    return results


def expiring_record(
    request: OffsetCommitRequest, topic: tuple[str, bytes], committed: CommittedOffset, now_ms: int
) -> Record:
    """Return the record of an offset that expires when its client has said."""
    record = offset_record(request.group_id, topic, committed, now_ms)
    value: OffsetCommitValue = record.value
    value.expire_timestamp = now_ms + request.retention_time_ms
    value.topic_id, value.leader_epoch = ZERO_UUID, -1
    return record._replace(version=OFFSET_WITH_EXPIRY_VERSION)
