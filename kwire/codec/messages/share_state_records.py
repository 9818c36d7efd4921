"""Records of `__share_group_state` (KIP-932)."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(record_type=0, versions="0")
class ShareSnapshotKey:
    group_id: String = field("0")
    topic_id: Uuid = field("0")
    partition: Int32 = field("0")


@message(record_type=0, versions="0", flexible="0+")
class ShareSnapshotValue:
    snapshot_epoch: Int32 = field("0+")
    state_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)
    create_timestamp: Int64 = field("0+")
    write_timestamp: Int64 = field("0+")

    @struct
    class StateBatch:
        first_offset: Int64 = field("0+")
        last_offset: Int64 = field("0+")
        delivery_state: Int8 = field("0+")
        delivery_count: Int16 = field("0+")

    state_batches: Array[StateBatch] = field("0+", factory=list)


@message(record_type=1, versions="0")
class ShareUpdateKey:
    group_id: String = field("0")
    topic_id: Uuid = field("0")
    partition: Int32 = field("0")


@message(record_type=1, versions="0", flexible="0+")
class ShareUpdateValue:
    snapshot_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)

    @struct
    class StateBatch:
        first_offset: Int64 = field("0+")
        last_offset: Int64 = field("0+")
        delivery_state: Int8 = field("0+")
        delivery_count: Int16 = field("0+")

    state_batches: Array[StateBatch] = field("0+", factory=list)
