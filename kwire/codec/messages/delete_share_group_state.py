"""DeleteShareGroupState (API key 86): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest(Request["DeleteShareGroupStateResponse"]):
    group_id: String = field("0+")

    @struct
    class DeleteStateData:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[DeleteStateData] = field("0+", factory=list)


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    @struct
    class DeleteStateResult:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionResult:
            partition: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partitions: Array[PartitionResult] = field("0+", factory=list)

    results: Array[DeleteStateResult] = field("0+", factory=list)
