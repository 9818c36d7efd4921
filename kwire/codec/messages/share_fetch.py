"""ShareFetch (API key 78): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    Records,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchRequest(Request["ShareFetchResponse"]):
    group_id: NullableString = field("0+", default=None, nullable="0+")
    member_id: NullableString = field("0+", nullable="0+")
    share_session_epoch: Int32 = field("0+")
    max_wait_ms: Int32 = field("0+")
    min_bytes: Int32 = field("0+")
    max_bytes: Int32 = field("0+", default=2147483647)
    max_records: Int32 = field("1+")
    batch_size: Int32 = field("1+")
    share_acquire_mode: Int8 = field("2+", default=0, ignorable=True)
    is_renew_ack: Bool = field("2+", default=False)

    @struct
    class FetchTopic:
        topic_id: Uuid = field("0+")

        @struct
        class FetchPartition:
            partition_index: Int32 = field("0+")

            @struct
            class AcknowledgementBatch:
                first_offset: Int64 = field("0+")
                last_offset: Int64 = field("0+")
                acknowledge_types: Array[Int8] = field("0+", factory=list)

            acknowledgement_batches: Array[AcknowledgementBatch] = field("0+", factory=list)

        partitions: Array[FetchPartition] = field("0+", factory=list)

    topics: Array[FetchTopic] = field("0+", factory=list)

    @struct
    class ForgottenTopic:
        topic_id: Uuid = field("0+")
        partitions: Array[Int32] = field("0+", factory=list)

    forgotten_topics_data: Array[ForgottenTopic] = field("0+", factory=list)


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    acquisition_lock_timeout_ms: Int32 = field("1+")

    @struct
    class ShareFetchableTopicResponse:
        topic_id: Uuid = field("0+")

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")
            acknowledge_error_code: Int16 = field("0+")
            acknowledge_error_message: NullableString = field("0+", default=None, nullable="0+")

            @struct
            class LeaderIdAndEpoch:
                leader_id: Int32 = field("0+")
                leader_epoch: Int32 = field("0+")

            current_leader: LeaderIdAndEpoch = field("0+")
            records: Records = field("0+", nullable="0")

            @struct
            class AcquiredRecords:
                first_offset: Int64 = field("0+")
                last_offset: Int64 = field("0+")
                delivery_count: Int16 = field("0+")

            acquired_records: Array[AcquiredRecords] = field("0+", factory=list)

        partitions: Array[PartitionData] = field("0+", factory=list)

    responses: Array[ShareFetchableTopicResponse] = field("0+", factory=list)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: NullableString = field("0+", default=None, nullable="0+")

    node_endpoints: Array[NodeEndpoint] = field("0+", factory=list)
