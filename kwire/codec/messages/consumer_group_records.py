"""Records of `__consumer_offsets` for groups of the consumer protocol (KIP-848)."""

from kwire.codec.schema import (
    Array,
    Bytes,
    Int8,
    Int32,
    Int64,
    Nullable,
    NullableArray,
    NullableString,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(record_type=3, versions="0")
class ConsumerGroupMetadataKey:
    group_id: String = field("0")


@message(record_type=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+", default=0, tag=0)


@message(record_type=4, versions="0")
class ConsumerGroupPartitionMetadataKey:
    group_id: String = field("0")


@message(record_type=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    @struct
    class TopicMetadata:
        topic_id: Uuid = field("0+")
        topic_name: String = field("0+")
        num_partitions: Int32 = field("0+")

        @struct
        class PartitionMetadata:
            partition: Int32 = field("0+")
            racks: Array[String] = field("0+", factory=list)

        partition_metadata: Array[PartitionMetadata] = field("0+", factory=list)

    topics: Array[TopicMetadata] = field("0+", factory=list)


@message(record_type=5, versions="0")
class ConsumerGroupMemberMetadataKey:
    group_id: String = field("0")
    member_id: String = field("0")


@message(record_type=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: NullableString = field("0+", nullable="0+")
    rack_id: NullableString = field("0+", nullable="0+")
    client_id: String = field("0+")
    client_host: String = field("0+")
    subscribed_topic_names: Array[String] = field("0+", factory=list)
    subscribed_topic_regex: NullableString = field("0+", nullable="0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    server_assignor: NullableString = field("0+", nullable="0+")

    @struct
    class ClassicMemberMetadata:
        session_timeout_ms: Int32 = field("0+", default=0)

        @struct
        class ClassicProtocol:
            name: String = field("0+")
            metadata: Bytes = field("0+")

        supported_protocols: Array[ClassicProtocol] = field("0+", factory=list)

    classic_member_metadata: Nullable[ClassicMemberMetadata] = field(
        "0+", factory=ClassicMemberMetadata, nullable="0+", tag=0
    )


@message(record_type=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: String = field("0")


@message(record_type=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", default=0, tag=0, ignorable=True)


@message(record_type=7, versions="0")
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: String = field("0")
    member_id: String = field("0")


@message(record_type=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    @struct
    class TopicPartition:
        topic_id: Uuid = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    topic_partitions: Array[TopicPartition] = field("0+", factory=list)


@message(record_type=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: String = field("0")
    member_id: String = field("0")


@struct
class TopicPartitions:
    topic_id: Uuid = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)
    assignment_epochs: NullableArray[Int32] = field("0+", factory=list, nullable="0+", tag=0)


@message(record_type=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    assigned_partitions: Array[TopicPartitions] = field("0+", factory=list)
    partitions_pending_revocation: Array[TopicPartitions] = field("0+", factory=list)


@message(record_type=16, versions="0")
class ConsumerGroupRegularExpressionKey:
    group_id: String = field("0")
    regular_expression: String = field("0")


@message(record_type=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: Array[String] = field("0+", factory=list)
    version: Int64 = field("0+")
    timestamp: Int64 = field("0+")
