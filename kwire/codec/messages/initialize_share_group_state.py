"""InitializeShareGroupState (API key 83): its request and its response."""

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


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest(Request["InitializeShareGroupStateResponse"]):
    group_id: String = field("0+")

    @struct
    class InitializeStateData:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition: Int32 = field("0+")
            state_epoch: Int32 = field("0+")
            start_offset: Int64 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[InitializeStateData] = field("0+", factory=list)


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    @struct
    class InitializeStateResult:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionResult:
            partition: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partitions: Array[PartitionResult] = field("0+", factory=list)

    results: Array[InitializeStateResult] = field("0+", factory=list)
