"""ConsumerGroupHeartbeat (API key 68): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
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


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    group_id: String = field("0+")
    member_id: String = field("0+")
    member_epoch: Int32 = field("0+")
    instance_id: NullableString = field("0+", default=None, nullable="0+")
    rack_id: NullableString = field("0+", default=None, nullable="0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    subscribed_topic_names: NullableArray[String] = field("0+", default=None, nullable="0+")
    subscribed_topic_regex: NullableString = field("1+", default=None, nullable="1+")
    server_assignor: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class TopicPartitions:
        topic_id: Uuid = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    topic_partitions: NullableArray[TopicPartitions] = field("0+", default=None, nullable="0+")
    must_name_member: Bool = field("", default=True, ignorable=True)
    """True if the client makes its member id itself (KIP-1082)."""


@struct
class TopicPartitions:
    topic_id: Uuid = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
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


def widen_request(
    request: ConsumerGroupHeartbeatRequest, version: int
) -> ConsumerGroupHeartbeatRequest:
    """Set the client's abilities by its version."""
    request.must_name_member = version >= 1
    return request
