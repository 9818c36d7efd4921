"""ReadShareGroupStateSummary (API key 87): its request and its response."""

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


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest(Request["ReadShareGroupStateSummaryResponse"]):
    group_id: String = field("0+")

    @struct
    class ReadStateSummaryData:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[ReadStateSummaryData] = field("0+", factory=list)


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    @struct
    class ReadStateSummaryResult:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionResult:
            partition: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")
            state_epoch: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")
            start_offset: Int64 = field("0+")
            delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)

        partitions: Array[PartitionResult] = field("0+", factory=list)

    results: Array[ReadStateSummaryResult] = field("0+", factory=list)
