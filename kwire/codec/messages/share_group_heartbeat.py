"""ShareGroupHeartbeat (API key 76): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Nullable,
    NullableArray,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    group_id: String = field("0+")
    member_id: String = field("0+")
    member_epoch: Int32 = field("0+")
    rack_id: NullableString = field("0+", default=None, nullable="0+")
    subscribed_topic_names: NullableArray[String] = field("0+", default=None, nullable="0+")


@struct
class TopicPartitions:
    topic_id: Uuid = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    member_id: NullableString = field("0+", default=None, nullable="0+")
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")

    @struct
    class Assignment:
        topic_partitions: Array[TopicPartitions] = field("0+", factory=list)

    assignment: Nullable[Assignment] = field("0+", default=None, nullable="0+")
