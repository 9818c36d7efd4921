"""ShareAcknowledge (API key 79): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    group_id: NullableString = field("0+", default=None, nullable="0+")
    member_id: NullableString = field("0+", nullable="0+")
    share_session_epoch: Int32 = field("0+")
    is_renew_ack: Bool = field("2+", default=False)

    @struct
    class AcknowledgeTopic:
        topic_id: Uuid = field("0+")

        @struct
        class AcknowledgePartition:
            partition_index: Int32 = field("0+")

            @struct
            class AcknowledgementBatch:
                first_offset: Int64 = field("0+")
                last_offset: Int64 = field("0+")
                acknowledge_types: Array[Int8] = field("0+", factory=list)

            acknowledgement_batches: Array[AcknowledgementBatch] = field("0+", factory=list)

        partitions: Array[AcknowledgePartition] = field("0+", factory=list)

    topics: Array[AcknowledgeTopic] = field("0+", factory=list)


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    acquisition_lock_timeout_ms: Int32 = field("2+", default=0, ignorable=True)

    @struct
    class ShareAcknowledgeTopicResponse:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")

            @struct
            class LeaderIdAndEpoch:
                leader_id: Int32 = field("0+")
                leader_epoch: Int32 = field("0+")

            current_leader: LeaderIdAndEpoch = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    responses: Array[ShareAcknowledgeTopicResponse] = field("0+", factory=list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: NullableString = field("0+", default=None, nullable="0+")

    node_endpoints: Array[NodeEndpoint] = field("0+", factory=list)
