"""DescribeProducers (API key 61): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    @struct
    class TopicRequest:
        name: String = field("0+")
        partition_indexes: Array[Int32] = field("0+", factory=list)

    topics: Array[TopicRequest] = field("0+", factory=list)


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class TopicResponse:
        name: String = field("0+")

        @struct
        class PartitionResponse:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

            @struct
            class ProducerState:
                producer_id: Int64 = field("0+")
                producer_epoch: Int32 = field("0+")
                last_sequence: Int32 = field("0+", default=-1)
                last_timestamp: Int64 = field("0+", default=-1)
                coordinator_epoch: Int32 = field("0+")
                current_txn_start_offset: Int64 = field("0+", default=-1)

            active_producers: Array[ProducerState] = field("0+", factory=list)

        partitions: Array[PartitionResponse] = field("0+", factory=list)

    topics: Array[TopicResponse] = field("0+", factory=list)
