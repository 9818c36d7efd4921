"""Records of `__consumer_offsets` for committed offsets and classic groups."""

from kwire.codec.schema import (
    Array,
    Bytes,
    Int32,
    Int64,
    NullableString,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(record_type=0, versions="0")
class LegacyOffsetCommitKey:
    group: String = field("0")
    topic: String = field("0")
    partition: Int32 = field("0")


@message(record_type=0, versions="0")
class LegacyOffsetCommitValue:
    offset: Int64 = field("0")
    metadata: String = field("0")
    commit_timestamp: Int64 = field("0")


@message(record_type=1, versions="0")
class OffsetCommitKey:
    group: String = field("0")
    topic: String = field("0")
    partition: Int32 = field("0")


@message(record_type=1, versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: Int64 = field("0+")
    leader_epoch: Int32 = field("3+", default=-1, ignorable=True)
    metadata: String = field("0+")
    commit_timestamp: Int64 = field("0+")
    expire_timestamp: Int64 = field("1", default=-1, ignorable=True)
    topic_id: Uuid = field("4+", default=ZERO_UUID, tag=0, ignorable=True)


@message(record_type=2, versions="0")
class GroupMetadataKey:
    group: String = field("0")


@struct
class MemberMetadata:
    member_id: String = field("0+")
    group_instance_id: NullableString = field("3+", default=None, nullable="3+", ignorable=True)
    client_id: String = field("0+")
    client_host: String = field("0+")
    rebalance_timeout: Int32 = field("1+", default=-1, ignorable=True)
    session_timeout: Int32 = field("0+")
    subscription: Bytes = field("0+")
    assignment: Bytes = field("0+")


@message(record_type=2, versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: String = field("0+")
    generation: Int32 = field("0+")
    protocol: NullableString = field("0+", nullable="0+")
    leader: NullableString = field("0+", nullable="0+")
    current_state_timestamp: Int64 = field("2+", default=-1, ignorable=True)
    members: Array[MemberMetadata] = field("0+", factory=list)
