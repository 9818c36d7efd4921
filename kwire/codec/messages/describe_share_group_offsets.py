"""DescribeShareGroupOffsets (API key 90): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableArray,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    @struct
    class DescribeShareGroupOffsetsRequestGroup:
        group_id: String = field("0+")

        @struct
        class DescribeShareGroupOffsetsRequestTopic:
            topic_name: String = field("0+")
            partitions: Array[Int32] = field("0+", factory=list)

        topics: NullableArray[DescribeShareGroupOffsetsRequestTopic] = field(
            "0+", factory=list, nullable="0+"
        )

    groups: Array[DescribeShareGroupOffsetsRequestGroup] = field("0+", factory=list)


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DescribeShareGroupOffsetsResponseGroup:
        group_id: String = field("0+")

        @struct
        class DescribeShareGroupOffsetsResponseTopic:
            topic_name: String = field("0+")
            topic_id: Uuid = field("0+")

            @struct
            class DescribeShareGroupOffsetsResponsePartition:
                partition_index: Int32 = field("0+")
                start_offset: Int64 = field("0+")
                leader_epoch: Int32 = field("0+")
                lag: Int64 = field("1+", default=-1, ignorable=True)
                error_code: Int16 = field("0+", default=0)
                error_message: NullableString = field("0+", default=None, nullable="0+")

            partitions: Array[DescribeShareGroupOffsetsResponsePartition] = field(
                "0+", factory=list
            )

        topics: Array[DescribeShareGroupOffsetsResponseTopic] = field("0+", factory=list)
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    groups: Array[DescribeShareGroupOffsetsResponseGroup] = field("0+", factory=list)
