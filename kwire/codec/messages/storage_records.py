"""Producer-state snapshots and the records of `__remote_log_metadata`."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableBytes,
    String,
    UInt32,
    Uuid,
    field,
    message,
    struct,
)


@message(versions="1")
class ProducerSnapshot:
    """A snapshot of the producers of one partition."""

    crc: UInt32 = field("1")

    @struct
    class ProducerEntry:
        producer_id: Int64 = field("1")
        epoch: Int16 = field("1")
        last_sequence: Int32 = field("1")
        last_offset: Int64 = field("1")
        offset_delta: Int32 = field("1")
        timestamp: Int64 = field("1")
        coordinator_epoch: Int32 = field("1")
        current_txn_first_offset: Int64 = field("1")

    producer_entries: Array[ProducerEntry] = field("1", factory=list)


@message(record_type=0, versions="0", flexible="0+")
class RemoteLogSegmentMetadataRecord:
    @struct
    class RemoteLogSegmentIdEntry:
        @struct
        class TopicIdPartitionEntry:
            name: String = field("0+")
            id: Uuid = field("0+")
            partition: Int32 = field("0+")

        topic_id_partition: TopicIdPartitionEntry = field("0+")
        id: Uuid = field("0+")

    remote_log_segment_id: RemoteLogSegmentIdEntry = field("0+")
    start_offset: Int64 = field("0+")
    end_offset: Int64 = field("0+")
    broker_id: Int32 = field("0+")
    max_timestamp_ms: Int64 = field("0+")
    event_timestamp_ms: Int64 = field("0+")

    @struct
    class SegmentLeaderEpochEntry:
        leader_epoch: Int32 = field("0+")
        offset: Int64 = field("0+")

    segment_leader_epochs: Array[SegmentLeaderEpochEntry] = field("0+", factory=list)
    segment_size_in_bytes: Int32 = field("0+")
    custom_metadata: NullableBytes = field("0+", default=None, nullable="0+")
    remote_log_segment_state: Int8 = field("0+")
    txn_index_empty: Bool = field("0+", default=False, tag=0)


@message(record_type=3, versions="0", flexible="0+")
class RemoteLogSegmentMetadataSnapshotRecord:
    segment_id: Uuid = field("0+")
    start_offset: Int64 = field("0+")
    end_offset: Int64 = field("0+")
    broker_id: Int32 = field("0+")
    max_timestamp_ms: Int64 = field("0+")
    event_timestamp_ms: Int64 = field("0+")

    @struct
    class SegmentLeaderEpochEntry:
        leader_epoch: Int32 = field("0+")
        offset: Int64 = field("0+")

    segment_leader_epochs: Array[SegmentLeaderEpochEntry] = field("0+", factory=list)
    segment_size_in_bytes: Int32 = field("0+")
    custom_metadata: NullableBytes = field("0+", default=None, nullable="0+")
    remote_log_segment_state: Int8 = field("0+")
    txn_index_empty: Bool = field("0+", default=False, tag=0)


@message(record_type=1, versions="0", flexible="0+")
class RemoteLogSegmentMetadataUpdateRecord:
    @struct
    class RemoteLogSegmentIdEntry:
        @struct
        class TopicIdPartitionEntry:
            name: String = field("0+")
            id: Uuid = field("0+")
            partition: Int32 = field("0+")

        topic_id_partition: TopicIdPartitionEntry = field("0+")
        id: Uuid = field("0+")

    remote_log_segment_id: RemoteLogSegmentIdEntry = field("0+")
    broker_id: Int32 = field("0+")
    event_timestamp_ms: Int64 = field("0+")
    custom_metadata: NullableBytes = field("0+", default=None, nullable="0+")
    remote_log_segment_state: Int8 = field("0+")


@message(record_type=2, versions="0", flexible="0+")
class RemotePartitionDeleteMetadataRecord:
    @struct
    class TopicIdPartitionEntry:
        name: String = field("0+")
        id: Uuid = field("0+")
        partition: Int32 = field("0+")

    topic_id_partition: TopicIdPartitionEntry = field("0+")
    broker_id: Int32 = field("0+")
    event_timestamp_ms: Int64 = field("0+")
    remote_partition_delete_state: Int8 = field("0+")


@message(versions="0")
class AbortedTxn:
    """An entry of the transaction index: one aborted transaction."""

    producer_id: Int64 = field("0+")
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    last_stable_offset: Int64 = field("0+")
