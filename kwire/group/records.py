"""The records of `__consumer_offsets`: their types and their encoding.

A key is a type number followed by the key's fields; a value is a version number followed by the
value's fields. The records of consumer, share and streams groups are in their own modules
(:mod:`kwire.group.consumer.records`, :mod:`kwire.group.share.records`,
:mod:`kwire.group.streams.records`), which are loaded when the first such record is read.
"""

import struct
from collections.abc import Generator
from typing import Final

from immutables import Map

from kwire.codec.compile import decode, decoder, encode
from kwire.codec.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.codec.messages.offset_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kwire.codec.schema import spec_of
from kwire.coordinator.decision import Record
from kwire.drive import run_steps
from kwire.group.model import CONSUMER, ClassicGroup, ClassicGroupState, Member

_PREFIX: Final = struct.Struct(">h")

OFFSET_VERSION: Final = 4
OFFSET_WITH_EXPIRY_VERSION: Final = 1
GROUP_VERSION: Final = 3

_VALUES: Final[dict[int, tuple[type, type, int]]] = {
    0: (LegacyOffsetCommitKey, LegacyOffsetCommitValue, 0),
    1: (OffsetCommitKey, OffsetCommitValue, OFFSET_VERSION),
    2: (GroupMetadataKey, GroupMetadataValue, GROUP_VERSION),
}
"""Key class, value class and the version in which values are written, by key type."""
_CONSUMER_TYPES: Final = frozenset({3, 4, 5, 6, 7, 8, 16})
"""The key types of consumer groups."""
_SHARE_TYPES: Final = frozenset(range(10, 16))
"""The key types of share groups."""
_STREAMS_TYPES: Final = frozenset({17, 19, 20, 21, 22, 23})
"""The key types of streams groups."""


def store(record: Record) -> tuple[bytes, bytes | None]:
    """Encode a record's key and value."""
    kind = spec_of(type(record.key)).record_type
    assert kind is not None
    key = _PREFIX.pack(kind) + encode(record.key, 0)
    if record.value is None:
        return key, None
    version = _values(kind)[2] if record.version is None else record.version
    return key, _PREFIX.pack(version) + encode(record.value, version)


def load(key: bytes, value: bytes | None) -> Record | None:
    """Decode a stored record; None if kwire does not use it. Raises ValueError if it is damaged."""
    if len(key) < _PREFIX.size or (value is not None and len(value) < _PREFIX.size):
        raise ValueError("record without a type")
    (kind,) = _PREFIX.unpack_from(key)
    if kind not in _VALUES and kind not in _CONSUMER_TYPES | _SHARE_TYPES | _STREAMS_TYPES:
        return None
    key_type, value_type, _ = _values(kind)
    decoded_key: object = decode(key_type, key[2:], 0)
    if value is None:
        return Record(decoded_key)
    (version,) = _PREFIX.unpack_from(value)
    if version not in spec_of(value_type).versions:
        raise ValueError(f"value version {version} of record type {kind}")
    return Record(decoded_key, decode(value_type, value[2:], version), version)


def _values(kind: int) -> tuple[type, type, int]:
    """Return the entry of a key type, including those of consumer, share and streams groups."""
    if kind in _SHARE_TYPES and kind not in _VALUES:
        from kwire.group.share.records import VALUES as SHARE_VALUES

        _VALUES.update(SHARE_VALUES)
    elif kind in _STREAMS_TYPES and kind not in _VALUES:
        from kwire.group.streams.records import VALUES as STREAMS_VALUES

        _VALUES.update(STREAMS_VALUES)
    elif kind not in _VALUES:
        from kwire.group.consumer.records import VALUES

        _VALUES.update(VALUES)
    return _VALUES[kind]


def is_of_consumer_group(key: object) -> bool:
    """Return whether a decoded key belongs to a consumer group."""
    return spec_of(type(key)).record_type in _CONSUMER_TYPES


def is_of_share_group(key: object) -> bool:
    """Return whether a decoded key belongs to a share group."""
    return spec_of(type(key)).record_type in _SHARE_TYPES


def group_record(group: ClassicGroup) -> Record:
    """Return the record of a group: its generation and members."""
    return run_steps(making_group_record(group))


def making_group_record(group: ClassicGroup) -> Generator[None, None, Record]:
    """Build the record of a group, yielding after each member."""
    members: list[MemberMetadata] = []
    for member in group.members_by_arrival():
        members.append(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol),
                assignment=member.assignment,
            )
        )
        yield
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.since_ms,
        members=members,
    )
    return Record(GroupMetadataKey(group=group.group_id), value)


def group_from(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Return the group stored in a record: stable if it has members, else empty.

    The maps are built in one step, because adding members one by one takes five to nine times as
    long.
    """
    protocol = value.protocol or ""
    members: dict[str, Member] = {}
    for order, stored in enumerate(value.members):
        timeout_ms = stored.rebalance_timeout
        members[stored.member_id] = Member(
            member_id=stored.member_id,
            instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else stored.session_timeout,
            session_timeout_ms=stored.session_timeout,
            protocols=((protocol, bytes(stored.subscription)),),
            assignment=bytes(stored.assignment),
            order=order,
        )
    statics = {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
    return ClassicGroup(
        group_id=group_id,
        state=ClassicGroupState.STABLE if members else ClassicGroupState.EMPTY,
        since_ms=value.current_state_timestamp,
        generation=value.generation,
        protocol_type=value.protocol_type if members else value.protocol_type or None,
        protocol=value.protocol,
        leader=value.leader,
        members=Map(members),
        instances=Map(statics),
        votes=Map({protocol: len(members)} if members else {}),
        arrivals=len(members),
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def group_tombstone(group_id: str) -> Record:
    return Record(GroupMetadataKey(group=group_id))


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics that a consumer group reads; None if its subscriptions are unreadable."""
    if group.protocol_type != CONSUMER:
        return None
    if not group.members:
        return frozenset()
    read = decoder(ConsumerProtocolSubscription, 0)
    topics: set[str] = set()
    for member in group.members.values():
        try:
            subscription, _ = read(member.metadata(group.protocol), _PREFIX.size)
        except ValueError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)
