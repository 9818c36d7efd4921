"""OffsetForLeaderEpoch (API key 23): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Int64, Request, String, field, message, struct


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    replica_id: Int32 = field("3+", default=-2, ignorable=True)

    @struct
    class OffsetForLeaderTopic:
        topic: String = field("0+")

        @struct
        class OffsetForLeaderPartition:
            partition: Int32 = field("0+")
            current_leader_epoch: Int32 = field("2+", default=-1, ignorable=True)
            leader_epoch: Int32 = field("0+")

        partitions: Array[OffsetForLeaderPartition] = field("0+", factory=list)

    topics: Array[OffsetForLeaderTopic] = field("0+", factory=list)


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)

    @struct
    class OffsetForLeaderTopicResult:
        topic: String = field("0+")

        @struct
        class EpochEndOffset:
            error_code: Int16 = field("0+", default=0)
            partition: Int32 = field("0+")
            leader_epoch: Int32 = field("1+", default=-1, ignorable=True)
            end_offset: Int64 = field("0+", default=-1)

        partitions: Array[EpochEndOffset] = field("0+", factory=list)

    topics: Array[OffsetForLeaderTopicResult] = field("0+", factory=list)
