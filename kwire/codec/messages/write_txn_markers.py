"""WriteTxnMarkers (API key 27): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    @struct
    class WritableTxnMarker:
        producer_id: Int64 = field("0+")
        producer_epoch: Int16 = field("0+")
        transaction_result: Bool = field("0+")

        @struct
        class WritableTxnMarkerTopic:
            name: String = field("0+")
            partition_indexes: Array[Int32] = field("0+", factory=list)

        topics: Array[WritableTxnMarkerTopic] = field("0+", factory=list)
        coordinator_epoch: Int32 = field("0+")
        transaction_version: Int8 = field("2+", default=0, ignorable=True)

    markers: Array[WritableTxnMarker] = field("0+", factory=list)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    @struct
    class WritableTxnMarkerResult:
        producer_id: Int64 = field("0+")

        @struct
        class WritableTxnMarkerTopicResult:
            name: String = field("0+")

            @struct
            class WritableTxnMarkerPartitionResult:
                partition_index: Int32 = field("0+")
                error_code: Int16 = field("0+", default=0)

            partitions: Array[WritableTxnMarkerPartitionResult] = field("0+", factory=list)

        topics: Array[WritableTxnMarkerTopicResult] = field("0+", factory=list)

    markers: Array[WritableTxnMarkerResult] = field("0+", factory=list)
