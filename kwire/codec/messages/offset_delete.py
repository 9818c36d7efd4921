"""OffsetDelete (API key 47): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Request, String, field, message, struct


@message(api_key=47, versions="0")
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    group_id: String = field("0+")

    @struct
    class OffsetDeleteRequestTopic:
        name: String = field("0+")

        @struct
        class OffsetDeleteRequestPartition:
            partition_index: Int32 = field("0+")

        partitions: Array[OffsetDeleteRequestPartition] = field("0+", factory=list)

    topics: Array[OffsetDeleteRequestTopic] = field("0+", factory=list)


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    error_code: Int16 = field("0+", default=0)
    throttle_time_ms: Int32 = field("0+", default=0, ignorable=True)

    @struct
    class OffsetDeleteResponseTopic:
        name: String = field("0+")

        @struct
        class OffsetDeleteResponsePartition:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)

        partitions: Array[OffsetDeleteResponsePartition] = field("0+", factory=list)

    topics: Array[OffsetDeleteResponseTopic] = field("0+", factory=list)
