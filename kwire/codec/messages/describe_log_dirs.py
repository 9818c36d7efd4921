"""DescribeLogDirs (API key 35): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    NullableArray,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    @struct
    class DescribableLogDirTopic:
        topic: String = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    topics: NullableArray[DescribableLogDirTopic] = field("0+", factory=list, nullable="0+")


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("3+", default=0, ignorable=True)

    @struct
    class DescribeLogDirsResult:
        error_code: Int16 = field("0+", default=0)
        log_dir: String = field("0+")

        @struct
        class DescribeLogDirsTopic:
            name: String = field("0+")

            @struct
            class DescribeLogDirsPartition:
                partition_index: Int32 = field("0+")
                partition_size: Int64 = field("0+")
                offset_lag: Int64 = field("0+")
                is_future_key: Bool = field("0+")

            partitions: Array[DescribeLogDirsPartition] = field("0+", factory=list)

        topics: Array[DescribeLogDirsTopic] = field("0+", factory=list)
        total_bytes: Int64 = field("4+", default=-1, ignorable=True)
        usable_bytes: Int64 = field("4+", default=-1, ignorable=True)
        is_cordoned: Bool = field("5+", default=False, ignorable=True)

    results: Array[DescribeLogDirsResult] = field("0+", factory=list)
