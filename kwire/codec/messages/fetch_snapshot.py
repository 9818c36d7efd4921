"""FetchSnapshot (API key 59): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableString,
    Records,
    Request,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest(Request["FetchSnapshotResponse"]):
    cluster_id: NullableString = field("0+", default=None, nullable="0+", tag=0)
    replica_id: Int32 = field("0+", default=-1)
    max_bytes: Int32 = field("0+", default=2147483647)

    @struct
    class TopicSnapshot:
        name: String = field("0+")

        @struct
        class PartitionSnapshot:
            partition: Int32 = field("0+")
            current_leader_epoch: Int32 = field("0+")

            @struct
            class SnapshotId:
                end_offset: Int64 = field("0+")
                epoch: Int32 = field("0+")

            snapshot_id: SnapshotId = field("0+")
            position: Int64 = field("0+")
            replica_directory_id: Uuid = field("1+", default=ZERO_UUID, tag=0, ignorable=True)

        partitions: Array[PartitionSnapshot] = field("0+", factory=list)

    topics: Array[TopicSnapshot] = field("0+", factory=list)


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    throttle_time_ms: Int32 = field("0+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)

    @struct
    class TopicSnapshot:
        name: String = field("0+")

        @struct
        class PartitionSnapshot:
            index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)

            @struct
            class SnapshotId:
                end_offset: Int64 = field("0+")
                epoch: Int32 = field("0+")

            snapshot_id: SnapshotId = field("0+")

            @struct
            class LeaderIdAndEpoch:
                leader_id: Int32 = field("0+", default=0)
                leader_epoch: Int32 = field("0+", default=0)

            current_leader: LeaderIdAndEpoch = field("0+", factory=LeaderIdAndEpoch, tag=0)
            size: Int64 = field("0+")
            position: Int64 = field("0+")
            unaligned_records: Records = field("0+")

        partitions: Array[PartitionSnapshot] = field("0+", factory=list)

    topics: Array[TopicSnapshot] = field("0+", factory=list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("1+", default=0)
        host: String = field("1+", default="")
        port: UInt16 = field("1+", default=0)

    node_endpoints: Array[NodeEndpoint] = field("1+", factory=list, tag=0)
