"""Fetch (API key 1): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableArray,
    NullableString,
    Records,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.errors import KafkaStorageError, NotLeaderOrFollower
from kwire.types import ZERO_UUID

ZSTD_SINCE = 10
"""The first version whose clients can read zstd."""
FOLLOWERS_SINCE = 11
"""The first version whose consumers may read from followers."""
TOPIC_IDS_SINCE = 13
"""The first version in which topics have ids instead of names."""


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest(Request["FetchResponse"]):
    cluster_id: NullableString = field("12+", default=None, nullable="12+", tag=0, ignorable=True)
    replica_id: Int32 = field("0-14", default=-1)

    @struct
    class ReplicaState:
        replica_id: Int32 = field("15+", default=-1)
        replica_epoch: Int64 = field("15+", default=-1)

    replica_state: ReplicaState = field("15+", factory=ReplicaState, tag=1)
    max_wait_ms: Int32 = field("0+")
    min_bytes: Int32 = field("0+")
    max_bytes: Int32 = field("3+", default=2147483647, ignorable=True)
    isolation_level: Int8 = field("4+", default=0, ignorable=True)
    session_id: Int32 = field("7+", default=0, ignorable=True)
    session_epoch: Int32 = field("7+", default=-1, ignorable=True)

    @struct
    class FetchTopic:
        topic: String = field("0-12", default="", ignorable=True)
        topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)

        @struct
        class FetchPartition:
            partition: Int32 = field("0+")
            current_leader_epoch: Int32 = field("9+", default=-1, ignorable=True)
            fetch_offset: Int64 = field("0+")
            last_fetched_epoch: Int32 = field("12+", default=-1)
            log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
            partition_max_bytes: Int32 = field("0+")
            replica_directory_id: Uuid = field("17+", default=ZERO_UUID, tag=0, ignorable=True)
            high_watermark: Int64 = field("18+", default=9223372036854775807, tag=1, ignorable=True)

        partitions: Array[FetchPartition] = field("0+", factory=list)

    topics: Array[FetchTopic] = field("0+", factory=list)

    @struct
    class ForgottenTopic:
        topic: String = field("7-12", default="", ignorable=True)
        topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: Array[Int32] = field("7+", factory=list)

    forgotten_topics_data: Array[ForgottenTopic] = field("7+", factory=list)
    rack_id: String = field("11+", default="", ignorable=True)
    zstd_allowed: Bool = field("", default=True, ignorable=True)
    """True if the client can read zstd, as from version 10 onwards; not on the wire."""
    reads_followers: Bool = field("", default=True, ignorable=True)
    """True if a consumer may read from followers, as from version 11 onwards; not on the wire."""
    uses_topic_ids: Bool = field("", default=True, ignorable=True)
    """True if topics have ids instead of names, as from version 13 onwards; not on the wire."""


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("7+", default=0, ignorable=True)
    session_id: Int32 = field("7+", default=0)

    @struct
    class FetchableTopicResponse:
        topic: String = field("0-12", default="", ignorable=True)
        topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            high_watermark: Int64 = field("0+")
            last_stable_offset: Int64 = field("4+", default=-1, ignorable=True)
            log_start_offset: Int64 = field("5+", default=-1, ignorable=True)

            @struct
            class EpochEndOffset:
                epoch: Int32 = field("12+", default=-1)
                end_offset: Int64 = field("12+", default=-1)

            diverging_epoch: EpochEndOffset = field("12+", factory=EpochEndOffset, tag=0)

            @struct
            class LeaderIdAndEpoch:
                leader_id: Int32 = field("12+", default=-1)
                leader_epoch: Int32 = field("12+", default=-1)

            current_leader: LeaderIdAndEpoch = field("12+", factory=LeaderIdAndEpoch, tag=1)

            @struct
            class SnapshotId:
                end_offset: Int64 = field("0+", default=-1)
                epoch: Int32 = field("0+", default=-1)

            snapshot_id: SnapshotId = field("12+", factory=SnapshotId, tag=2)

            @struct
            class AbortedTransaction:
                producer_id: Int64 = field("4+")
                first_offset: Int64 = field("4+")

            aborted_transactions: NullableArray[AbortedTransaction] = field(
                "4+", factory=list, nullable="4+", ignorable=True
            )
            preferred_read_replica: Int32 = field("11+", default=-1)
            records: Records = field("0+", nullable="0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    responses: Array[FetchableTopicResponse] = field("0+", factory=list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("16+", default=0)
        host: String = field("16+", default="")
        port: Int32 = field("16+", default=0)
        rack: NullableString = field("16+", default=None, nullable="16+")

    node_endpoints: Array[NodeEndpoint] = field("16+", factory=list, tag=0)


def widen_request(request: FetchRequest, version: int) -> FetchRequest:
    request.zstd_allowed = version >= ZSTD_SINCE
    request.reads_followers = version >= FOLLOWERS_SINCE
    request.uses_topic_ids = version >= TOPIC_IDS_SINCE
    return request


def narrow_response(response: FetchResponse, version: int, request: FetchRequest) -> FetchResponse:
    """Remove leader hints before version 16; replace KafkaStorageError before version 6."""
    if version < 6:
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code == KafkaStorageError.code:
                    partition.error_code = NotLeaderOrFollower.code
    if version < 16 and response.node_endpoints:
        response.node_endpoints = []
        unknown = FetchResponse.FetchableTopicResponse.PartitionData.LeaderIdAndEpoch()
        for topic in response.responses:
            for partition in topic.partitions:
                partition.current_leader = unknown
    return response
