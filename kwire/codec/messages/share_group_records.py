"""Records of `__consumer_offsets` for share groups (KIP-932)."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int32,
    Int64,
    NullableString,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(record_type=10, versions="0")
class ShareGroupMemberMetadataKey:
    group_id: String = field("0")
    member_id: String = field("0")


@message(record_type=10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    rack_id: NullableString = field("0+", nullable="0+")
    client_id: String = field("0+")
    client_host: String = field("0+")
    subscribed_topic_names: Array[String] = field("0+", factory=list)


@message(record_type=11, versions="0")
class ShareGroupMetadataKey:
    group_id: String = field("0")


@message(record_type=11, versions="0", flexible="0+")
class ShareGroupMetadataValue:
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+")


@message(record_type=12, versions="0")
class ShareGroupTargetAssignmentMetadataKey:
    group_id: String = field("0")


@message(record_type=12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", default=0, tag=0, ignorable=True)


@message(record_type=13, versions="0")
class ShareGroupTargetAssignmentMemberKey:
    group_id: String = field("0")
    member_id: String = field("0")


@message(record_type=13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    @struct
    class TopicPartition:
        topic_id: Uuid = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    topic_partitions: Array[TopicPartition] = field("0+", factory=list)


@message(record_type=14, versions="0")
class ShareGroupCurrentMemberAssignmentKey:
    group_id: String = field("0")
    member_id: String = field("0")


@struct
class TopicPartitions:
    topic_id: Uuid = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(record_type=14, versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    assigned_partitions: Array[TopicPartitions] = field("0+", factory=list)


@message(record_type=15, versions="0")
class ShareGroupStatePartitionMetadataKey:
    group_id: String = field("0")


@struct
class TopicPartitionsInfo:
    topic_id: Uuid = field("0+")
    topic_name: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@struct
class TopicInfo:
    topic_id: Uuid = field("0+")
    topic_name: String = field("0+")


@message(record_type=15, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: Array[TopicPartitionsInfo] = field("0+", factory=list)
    initialized_topics: Array[TopicPartitionsInfo] = field("0+", factory=list)
    deleting_topics: Array[TopicInfo] = field("0+", factory=list)
