"""WriteShareGroupState (API key 85): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int8,
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


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest(Request["WriteShareGroupStateResponse"]):
    group_id: String = field("0+")

    @struct
    class WriteStateData:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition: Int32 = field("0+")
            state_epoch: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")
            start_offset: Int64 = field("0+")
            delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)

            @struct
            class StateBatch:
                first_offset: Int64 = field("0+")
                last_offset: Int64 = field("0+")
                delivery_state: Int8 = field("0+")
                delivery_count: Int16 = field("0+")

            state_batches: Array[StateBatch] = field("0+", factory=list)

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[WriteStateData] = field("0+", factory=list)


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    @struct
    class WriteStateResult:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionResult:
            partition: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

        partitions: Array[PartitionResult] = field("0+", factory=list)

    results: Array[WriteStateResult] = field("0+", factory=list)
