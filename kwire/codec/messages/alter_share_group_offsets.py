"""AlterShareGroupOffsets (API key 91): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    group_id: String = field("0+")

    @struct
    class AlterShareGroupOffsetsRequestTopic:
        topic_name: String = field("0+")

        @struct
        class AlterShareGroupOffsetsRequestPartition:
            partition_index: Int32 = field("0+")
            start_offset: Int64 = field("0+")

        partitions: Array[AlterShareGroupOffsetsRequestPartition] = field("0+", factory=list)

    topics: Array[AlterShareGroupOffsetsRequestTopic] = field("0+", factory=list)


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class AlterShareGroupOffsetsResponseTopic:
        topic_name: String = field("0+")
        topic_id: Uuid = field("0+")

        @struct
        class AlterShareGroupOffsetsResponsePartition:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partitions: Array[AlterShareGroupOffsetsResponsePartition] = field("0+", factory=list)

    responses: Array[AlterShareGroupOffsetsResponseTopic] = field("0+", factory=list)
