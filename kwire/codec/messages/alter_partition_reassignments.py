"""AlterPartitionReassignments (API key 45): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    NullableArray,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    timeout_ms: Int32 = field("0+", default=60000)
    allow_replication_factor_change: Bool = field("1+", default=True)

    @struct
    class ReassignableTopic:
        name: String = field("0+")

        @struct
        class ReassignablePartition:
            partition_index: Int32 = field("0+")
            replicas: NullableArray[Int32] = field("0+", default=None, nullable="0+")

        partitions: Array[ReassignablePartition] = field("0+", factory=list)

    topics: Array[ReassignableTopic] = field("0+", factory=list)


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    allow_replication_factor_change: Bool = field("1+", default=True, ignorable=True)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class ReassignableTopicResponse:
        name: String = field("0+")

        @struct
        class ReassignablePartitionResponse:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partitions: Array[ReassignablePartitionResponse] = field("0+", factory=list)

    responses: Array[ReassignableTopicResponse] = field("0+", factory=list)
