"""ListPartitionReassignments (API key 46): its request and its response."""

from kwire.codec.schema import (
    Array,
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


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    timeout_ms: Int32 = field("0+", default=60000)

    @struct
    class ListPartitionReassignmentsTopics:
        name: String = field("0+")
        partition_indexes: Array[Int32] = field("0+", factory=list)

    topics: NullableArray[ListPartitionReassignmentsTopics] = field(
        "0+", default=None, nullable="0+"
    )


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class OngoingTopicReassignment:
        name: String = field("0+")

        @struct
        class OngoingPartitionReassignment:
            partition_index: Int32 = field("0+")
            replicas: Array[Int32] = field("0+", factory=list)
            adding_replicas: Array[Int32] = field("0+", factory=list)
            removing_replicas: Array[Int32] = field("0+", factory=list)

        partitions: Array[OngoingPartitionReassignment] = field("0+", factory=list)

    topics: Array[OngoingTopicReassignment] = field("0+", factory=list)
