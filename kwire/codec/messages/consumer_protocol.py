"""The messages between classic consumers inside JoinGroup and SyncGroup."""

from kwire.codec.schema import (
    Array,
    Int32,
    NullableBytes,
    NullableString,
    String,
    field,
    message,
    struct,
)


@message(versions="0-3")
class ConsumerProtocolSubscription:
    """The subscription of one member.

    Version 1 adds owned_partitions. Version 2 adds generation_id. Version 3 adds rack_id.
    """

    topics: Array[String] = field("0+", factory=list)
    user_data: NullableBytes = field("0+", default=None, nullable="0+")

    @struct
    class TopicPartition:
        topic: String = field("1+", default="")
        partitions: Array[Int32] = field("1+", factory=list)

    owned_partitions: Array[TopicPartition] = field("1+", factory=list, ignorable=True)
    generation_id: Int32 = field("2+", default=-1, ignorable=True)
    rack_id: NullableString = field("3+", default=None, nullable="3+", ignorable=True)


@message(versions="0-3")
class ConsumerProtocolAssignment:
    """The assignment of one member."""

    @struct
    class TopicPartition:
        topic: String = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    assigned_partitions: Array[TopicPartition] = field("0+", factory=list)
    user_data: NullableBytes = field("0+", default=None, nullable="0+")
