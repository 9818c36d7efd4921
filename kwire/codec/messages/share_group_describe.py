"""ShareGroupDescribe (API key 77): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
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


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest(Request["ShareGroupDescribeResponse"]):
    group_ids: Array[String] = field("0+", factory=list)
    include_authorized_operations: Bool = field("0+")


@struct
class TopicPartitions:
    topic_id: Uuid = field("0+")
    topic_name: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@struct
class Assignment:
    topic_partitions: Array[TopicPartitions] = field("0+", factory=list)


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DescribedGroup:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")
        group_id: String = field("0+")
        group_state: String = field("0+")
        group_epoch: Int32 = field("0+")
        assignment_epoch: Int32 = field("0+")
        assignor_name: String = field("0+")

        @struct
        class Member:
            member_id: String = field("0+")
            rack_id: NullableString = field("0+", default=None, nullable="0+")
            member_epoch: Int32 = field("0+")
            client_id: String = field("0+")
            client_host: String = field("0+")
            subscribed_topic_names: Array[String] = field("0+", factory=list)
            assignment: Assignment = field("0+")

        members: Array[Member] = field("0+", factory=list)
        authorized_operations: Int32 = field("0+", default=-2147483648)

    groups: Array[DescribedGroup] = field("0+", factory=list)
