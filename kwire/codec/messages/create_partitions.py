"""CreatePartitions (API key 37): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    NullableArray,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    @struct
    class CreatePartitionsTopic:
        name: String = field("0+")
        count: Int32 = field("0+")

        @struct
        class CreatePartitionsAssignment:
            broker_ids: Array[Int32] = field("0+", factory=list)

        assignments: NullableArray[CreatePartitionsAssignment] = field(
            "0+", factory=list, nullable="0+"
        )

    topics: Array[CreatePartitionsTopic] = field("0+", factory=list)
    timeout_ms: Int32 = field("0+")
    validate_only: Bool = field("0+")


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class CreatePartitionsTopicResult:
        name: String = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    results: Array[CreatePartitionsTopicResult] = field("0+", factory=list)
