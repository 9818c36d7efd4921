"""OffsetCommit (API key 8): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
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
from kwire.errors import GroupIdNotFound, IllegalGeneration
from kwire.types import ZERO_UUID


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    group_id: String = field("0+")
    generation_id_or_member_epoch: Int32 = field("1+", default=-1, ignorable=True)
    member_id: String = field("1+", ignorable=True)
    group_instance_id: NullableString = field("7+", default=None, nullable="7+")
    retention_time_ms: Int64 = field("2-4", default=-1, ignorable=True)

    @struct
    class OffsetCommitRequestTopic:
        name: String = field("0-9", default="", ignorable=True)
        topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)

        @struct
        class OffsetCommitRequestPartition:
            partition_index: Int32 = field("0+")
            committed_offset: Int64 = field("0+")
            committed_leader_epoch: Int32 = field("6+", default=-1, ignorable=True)
            committed_metadata: NullableString = field("0+", nullable="0+")

        partitions: Array[OffsetCommitRequestPartition] = field("0+", factory=list)

    topics: Array[OffsetCommitRequestTopic] = field("0+", factory=list)
    knows_member_epochs: Bool = field("", default=True, ignorable=True)
    """True if the client can be a member of a consumer group (KIP-848)."""


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: Int32 = field("3+", default=0, ignorable=True)

    @struct
    class OffsetCommitResponseTopic:
        name: String = field("0-9", default="", ignorable=True)
        topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)

        @struct
        class OffsetCommitResponsePartition:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)

        partitions: Array[OffsetCommitResponsePartition] = field("0+", factory=list)

    topics: Array[OffsetCommitResponseTopic] = field("0+", factory=list)


def widen_request(request: OffsetCommitRequest, version: int) -> OffsetCommitRequest:
    """Set the client's abilities by its version."""
    request.knows_member_epochs = version >= 9
    return request


def narrow_response(
    response: OffsetCommitResponse, version: int, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Before version 9, replace GroupIdNotFound by IllegalGeneration."""
    if version < 9:
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == GroupIdNotFound.code:
                    partition.error_code = IllegalGeneration.code
    return response
