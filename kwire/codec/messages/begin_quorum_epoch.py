"""BeginQuorumEpoch (API key 53): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
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


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochRequest(Request["BeginQuorumEpochResponse"]):
    cluster_id: NullableString = field("0+", default=None, nullable="0+")
    voter_id: Int32 = field("1+", default=-1, ignorable=True)

    @struct
    class TopicData:
        topic_name: String = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            voter_directory_id: Uuid = field("1+", default=ZERO_UUID, ignorable=True)
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)

    @struct
    class LeaderEndpoint:
        name: String = field("1+", default="")
        host: String = field("1+", default="")
        port: UInt16 = field("1+", default=0)

    leader_endpoints: Array[LeaderEndpoint] = field("1+", factory=list, ignorable=True)


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochResponse:
    error_code: Int16 = field("0+", default=0)

    @struct
    class TopicData:
        topic_name: String = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("1+", default=0)
        host: String = field("1+", default="")
        port: UInt16 = field("1+", default=0)

    node_endpoints: Array[NodeEndpoint] = field("1+", factory=list, tag=0)
