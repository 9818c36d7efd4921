"""Produce (API key 0): its request and its response."""

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
from kwire.types import ZERO_UUID


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest(Request["ProduceResponse"]):
    transactional_id: NullableString = field("3+", default=None, nullable="3+")
    acks: Int16 = field("0+")
    timeout_ms: Int32 = field("0+")

    @struct
    class TopicProduceData:
        name: String = field("0-12", default="", ignorable=True)
        topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)

        @struct
        class PartitionProduceData:
            index: Int32 = field("0+")
            records: Records = field("0+", nullable="0+")

        partition_data: Array[PartitionProduceData] = field("0+", factory=list)

    topic_data: Array[TopicProduceData] = field("0+", factory=list)
    zstd_allowed: Bool = field("", default=True, ignorable=True)
    """True if zstd is allowed, as from version 7 onwards; not on the wire."""
    transaction_support: Int8 = field("", default=2, ignorable=True)
    """2 if the client relies on the broker to add partitions to its transaction (version 12,
    KIP-890), 1 if it knows TRANSACTION_ABORTABLE (version 11), else 0; not on the wire."""
    uses_topic_ids: Bool = field("", default=True, ignorable=True)
    """True if topics have ids instead of names, as from version 13 onwards; not on the wire."""


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    @struct
    class TopicProduceResponse:
        name: String = field("0-12", default="", ignorable=True)
        topic_id: Uuid = field("13+", default=ZERO_UUID, ignorable=True)

        @struct
        class PartitionProduceResponse:
            index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            base_offset: Int64 = field("0+")
            log_append_time_ms: Int64 = field("2+", default=-1, ignorable=True)
            log_start_offset: Int64 = field("5+", default=-1, ignorable=True)

            @struct
            class BatchIndexAndErrorMessage:
                batch_index: Int32 = field("8+", default=0)
                batch_index_error_message: NullableString = field("8+", default=None, nullable="8+")

            record_errors: Array[BatchIndexAndErrorMessage] = field(
                "8+", factory=list, ignorable=True
            )
            error_message: NullableString = field("8+", default=None, nullable="8+", ignorable=True)

            @struct
            class LeaderIdAndEpoch:
                leader_id: Int32 = field("10+", default=-1)
                leader_epoch: Int32 = field("10+", default=-1)

            current_leader: LeaderIdAndEpoch = field("10+", factory=LeaderIdAndEpoch, tag=0)

        partition_responses: Array[PartitionProduceResponse] = field("0+", factory=list)

    responses: Array[TopicProduceResponse] = field("0+", factory=list)
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)

    @struct
    class NodeEndpoint:
        node_id: Int32 = field("10+", default=0)
        host: String = field("10+", default="")
        port: Int32 = field("10+", default=0)
        rack: NullableString = field("10+", default=None, nullable="10+")

    node_endpoints: Array[NodeEndpoint] = field("10+", factory=list, tag=0)


def widen_request(request: ProduceRequest, version: int) -> ProduceRequest:
    request.zstd_allowed = version >= 7
    request.transaction_support = min(max(version - 10, 0), 2)
    request.uses_topic_ids = version >= 13
    return request
