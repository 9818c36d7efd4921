"""DescribeTopicPartitions (API key 75): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Nullable,
    NullableArray,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    @struct
    class TopicRequest:
        name: String = field("0+")

    topics: Array[TopicRequest] = field("0+", factory=list)
    response_partition_limit: Int32 = field("0+", default=2000)

    @struct
    class Cursor:
        topic_name: String = field("0+")
        partition_index: Int32 = field("0+")

    cursor: Nullable[Cursor] = field("0+", default=None, nullable="0+")


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    throttle_time_ms: Int32 = field("0+", default=0, ignorable=True)

    @struct
    class DescribeTopicPartitionsResponseTopic:
        error_code: Int16 = field("0+", default=0)
        name: NullableString = field("0+", nullable="0+")
        topic_id: Uuid = field("0+", ignorable=True)
        is_internal: Bool = field("0+", default=False, ignorable=True)

        @struct
        class DescribeTopicPartitionsResponsePartition:
            error_code: Int16 = field("0+", default=0)
            partition_index: Int32 = field("0+")
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("0+", default=-1, ignorable=True)
            replica_nodes: Array[Int32] = field("0+", factory=list)
            isr_nodes: Array[Int32] = field("0+", factory=list)
            eligible_leader_replicas: NullableArray[Int32] = field(
                "0+", default=None, nullable="0+"
            )
            last_known_elr: NullableArray[Int32] = field("0+", default=None, nullable="0+")
            offline_replicas: Array[Int32] = field("0+", factory=list, ignorable=True)

        partitions: Array[DescribeTopicPartitionsResponsePartition] = field("0+", factory=list)
        topic_authorized_operations: Int32 = field("0+", default=-2147483648)

    topics: Array[DescribeTopicPartitionsResponseTopic] = field("0+", factory=list)

    @struct
    class Cursor:
        topic_name: String = field("0+")
        partition_index: Int32 = field("0+")

    next_cursor: Nullable[Cursor] = field("0+", default=None, nullable="0+")
