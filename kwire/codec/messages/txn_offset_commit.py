"""TxnOffsetCommit (API key 28): its request and its response."""

from kwire.codec.schema import (
    Array,
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
from kwire.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable
from kwire.types import ZERO_UUID


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    transactional_id: String = field("0+")
    group_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    generation_id: Int32 = field("3+", default=-1)
    member_id: String = field("3+", default="")
    group_instance_id: NullableString = field("3+", default=None, nullable="3+")

    @struct
    class TxnOffsetCommitRequestTopic:
        name: String = field("0-5", default="", ignorable=True)
        topic_id: Uuid = field("6+", default=ZERO_UUID, ignorable=True)

        @struct
        class TxnOffsetCommitRequestPartition:
            partition_index: Int32 = field("0+")
            committed_offset: Int64 = field("0+")
            committed_leader_epoch: Int32 = field("2+", default=-1, ignorable=True)
            committed_metadata: NullableString = field("0+", nullable="0+")

        partitions: Array[TxnOffsetCommitRequestPartition] = field("0+", factory=list)

    topics: Array[TxnOffsetCommitRequestTopic] = field("0+", factory=list)
    transaction_support: Int8 = field("", default=2, ignorable=True)
    """2 if the client relies on the broker to add the group to its transaction (version 5,
    KIP-890), 1 if it knows TRANSACTION_ABORTABLE (version 4), else 0; not on the wire."""


def widen_request(request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitRequest:
    request.transaction_support = min(max(version - 3, 0), 2)
    return request


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class TxnOffsetCommitResponseTopic:
        name: String = field("0-5", default="", ignorable=True)
        topic_id: Uuid = field("6+", default=ZERO_UUID, ignorable=True)

        @struct
        class TxnOffsetCommitResponsePartition:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)

        partitions: Array[TxnOffsetCommitResponsePartition] = field("0+", factory=list)

    topics: Array[TxnOffsetCommitResponseTopic] = field("0+", factory=list)


def narrow_response(
    response: TxnOffsetCommitResponse, version: int, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Replace CoordinatorLoadInProgress by CoordinatorNotAvailable for clients before version 2."""
    if version < 2:
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == CoordinatorLoadInProgress.code:
                    partition.error_code = CoordinatorNotAvailable.code
    return response
