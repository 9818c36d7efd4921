"""DeleteRecords (API key 21): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Int64, Request, String, field, message, struct


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    @struct
    class DeleteRecordsTopic:
        name: String = field("0+")

        @struct
        class DeleteRecordsPartition:
            partition_index: Int32 = field("0+")
            offset: Int64 = field("0+")

        partitions: Array[DeleteRecordsPartition] = field("0+", factory=list)

    topics: Array[DeleteRecordsTopic] = field("0+", factory=list)
    timeout_ms: Int32 = field("0+")


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DeleteRecordsTopicResult:
        name: String = field("0+")

        @struct
        class DeleteRecordsPartitionResult:
            partition_index: Int32 = field("0+")
            low_watermark: Int64 = field("0+")
            error_code: Int16 = field("0+", default=0)

        partitions: Array[DeleteRecordsPartitionResult] = field("0+", factory=list)

    topics: Array[DeleteRecordsTopicResult] = field("0+", factory=list)
