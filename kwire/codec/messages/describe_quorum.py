"""DescribeQuorum (API key 55): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest(Request["DescribeQuorumResponse"]):
    @struct
    class TopicData:
        topic_name: String = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)


@struct
class ReplicaState:
    replica_id: Int32 = field("0+")
    replica_directory_id: Uuid = field("2+", default=ZERO_UUID)
    log_end_offset: Int64 = field("0+")
    last_fetch_timestamp: Int64 = field("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: Int64 = field("1+", default=-1, ignorable=True)


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("2+", default=None, nullable="2+", ignorable=True)

    @struct
    class TopicData:
        topic_name: String = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("2+", default=None, nullable="2+", ignorable=True)
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")
            high_watermark: Int64 = field("0+")
            current_voters: Array[ReplicaState] = field("0+", factory=list)
            observers: Array[ReplicaState] = field("0+", factory=list)

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)

    @struct
    class Node:
        node_id: Int32 = field("2+", default=0)

        @struct
        class Listener:
            name: String = field("2+", default="")
            host: String = field("2+", default="")
            port: UInt16 = field("2+", default=0)

        listeners: Array[Listener] = field("2+", factory=list)

    nodes: Array[Node] = field("2+", factory=list)
