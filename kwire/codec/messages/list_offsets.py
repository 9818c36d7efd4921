"""ListOffsets (API key 2): its request and its response."""

from typing import Final

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    String,
    field,
    message,
    struct,
)
from kwire.errors import LeaderNotAvailable, OffsetNotAvailable

MEANINGLESS: Final = -(1 << 63)
"""Replaces a negative timestamp that the request's version does not define."""
_SPECIAL_SINCE: Final = ((7, -2), (8, -3), (9, -4), (11, -5))
"""Pairs of a version and the smallest timestamp that has a meaning before that version."""


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    replica_id: Int32 = field("0+")
    isolation_level: Int8 = field("2+", default=0)

    @struct
    class ListOffsetsTopic:
        name: String = field("0+")

        @struct
        class ListOffsetsPartition:
            partition_index: Int32 = field("0+")
            current_leader_epoch: Int32 = field("4+", default=-1, ignorable=True)
            timestamp: Int64 = field("0+")

        partitions: Array[ListOffsetsPartition] = field("0+", factory=list)

    topics: Array[ListOffsetsTopic] = field("0+", factory=list)
    timeout_ms: Int32 = field("10+", default=0, ignorable=True)


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)

    @struct
    class ListOffsetsTopicResponse:
        name: String = field("0+")

        @struct
        class ListOffsetsPartitionResponse:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            timestamp: Int64 = field("1+", default=-1)
            offset: Int64 = field("1+", default=-1)
            leader_epoch: Int32 = field("4+", default=-1)

        partitions: Array[ListOffsetsPartitionResponse] = field("0+", factory=list)

    topics: Array[ListOffsetsTopicResponse] = field("0+", factory=list)


def widen_request(request: ListOffsetsRequest, version: int) -> ListOffsetsRequest:
    """Replace negative timestamps that the request's version does not define."""
    for since, least in _SPECIAL_SINCE:
        if version < since:
            for topic in request.topics:
                for partition in topic.partitions:
                    if partition.timestamp < least:
                        partition.timestamp = MEANINGLESS
            break
    return request


def narrow_response(
    response: ListOffsetsResponse, version: int, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Remove the leader epoch before version 4; replace OffsetNotAvailable before version 5."""
    if version < 5:
        for topic in response.topics:
            for partition in topic.partitions:
                if version < 4:
                    partition.leader_epoch = -1
                if partition.error_code == OffsetNotAvailable.code:
                    partition.error_code = LeaderNotAvailable.code
    return response
