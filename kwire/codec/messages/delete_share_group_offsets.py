"""DeleteShareGroupOffsets (API key 92): its request and its response."""

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


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    group_id: String = field("0+")

    @struct
    class DeleteShareGroupOffsetsRequestTopic:
        topic_name: String = field("0+")

    topics: Array[DeleteShareGroupOffsetsRequestTopic] = field("0+", factory=list)


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class DeleteShareGroupOffsetsResponseTopic:
        topic_name: String = field("0+")
        topic_id: Uuid = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    responses: Array[DeleteShareGroupOffsetsResponseTopic] = field("0+", factory=list)
