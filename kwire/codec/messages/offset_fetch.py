"""OffsetFetch (API key 9): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    NullableArray,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    group_id: String = field("0-7", default="")

    @struct
    class OffsetFetchRequestTopic:
        name: String = field("0-7", default="")
        partition_indexes: Array[Int32] = field("0-7", factory=list)

    topics: NullableArray[OffsetFetchRequestTopic] = field("0-7", factory=list, nullable="2-7")

    @struct
    class OffsetFetchRequestGroup:
        group_id: String = field("8+", default="")
        member_id: NullableString = field("9+", default=None, nullable="9+", ignorable=True)
        member_epoch: Int32 = field("9+", default=-1, ignorable=True)

        @struct
        class OffsetFetchRequestTopics:
            name: String = field("8-9", default="", ignorable=True)
            topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
            partition_indexes: Array[Int32] = field("8+", factory=list)

        topics: NullableArray[OffsetFetchRequestTopics] = field("8+", factory=list, nullable="8+")

    groups: Array[OffsetFetchRequestGroup] = field("8+", factory=list)
    require_stable: Bool = field("7+", default=False)


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: Int32 = field("3+", default=0, ignorable=True)

    @struct
    class OffsetFetchResponseTopic:
        name: String = field("0-7", default="")

        @struct
        class OffsetFetchResponsePartition:
            partition_index: Int32 = field("0-7", default=0)
            committed_offset: Int64 = field("0-7", default=0)
            committed_leader_epoch: Int32 = field("5-7", default=-1, ignorable=True)
            metadata: NullableString = field("0-7", default="", nullable="0-7")
            error_code: Int16 = field("0-7", default=0)

        partitions: Array[OffsetFetchResponsePartition] = field("0-7", factory=list)

    topics: Array[OffsetFetchResponseTopic] = field("0-7", factory=list)
    error_code: Int16 = field("2-7", default=0, ignorable=True)

    @struct
    class OffsetFetchResponseGroup:
        group_id: String = field("8+", default="")

        @struct
        class OffsetFetchResponseTopics:
            name: String = field("8-9", default="", ignorable=True)
            topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)

            @struct
            class OffsetFetchResponsePartitions:
                partition_index: Int32 = field("8+", default=0)
                committed_offset: Int64 = field("8+", default=0)
                committed_leader_epoch: Int32 = field("8+", default=-1, ignorable=True)
                metadata: NullableString = field("8+", default="", nullable="8+")
                error_code: Int16 = field("8+", default=0)

            partitions: Array[OffsetFetchResponsePartitions] = field("8+", factory=list)

        topics: Array[OffsetFetchResponseTopics] = field("8+", factory=list)
        error_code: Int16 = field("8+", default=0)

    groups: Array[OffsetFetchResponseGroup] = field("8+", factory=list)


def widen_request(request: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
    """Turn the single group of versions before 8 into a list; topics None means all topics."""
    if version < 8:
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
        if request.topics is not None:
            group.topics = [
                group.OffsetFetchRequestTopics(
                    name=topic.name, partition_indexes=topic.partition_indexes
                )
                for topic in request.topics
            ]
        request.groups, request.group_id, request.topics = [group], "", []
    return request


def narrow_response(
    response: OffsetFetchResponse, version: int, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Before version 8, report the only group in the response's own fields.

    Version 1 has no field for a group's error, so each requested partition reports it. Version 10
    cannot name a topic without an id, so it omits such topics where all topics were requested.
    """
    if version > 9:
        for group, requested in zip(response.groups, request.groups, strict=True):
            if requested.topics is None:
                group.topics = [topic for topic in group.topics if topic.topic_id != ZERO_UUID]
        return response
    if version > 7 or not response.groups:
        return response
    group = response.groups[0]
    response.groups = []
    if version > 1:
        response.error_code = group.error_code
    if version > 1 or not group.error_code:
        response.topics = [_old_topic(topic) for topic in group.topics]
    else:
        topics = request.groups[0].topics or []
        response.topics = [_failed_topic(topic, group.error_code) for topic in topics]
    return response


def _old_topic(
    topic: OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics,
) -> OffsetFetchResponse.OffsetFetchResponseTopic:
    old = OffsetFetchResponse.OffsetFetchResponseTopic
    return old(
        name=topic.name,
        partitions=[
            old.OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
            for partition in topic.partitions
        ],
    )


def _failed_topic(
    topic: OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics, error_code: int
) -> OffsetFetchResponse.OffsetFetchResponseTopic:
    old = OffsetFetchResponse.OffsetFetchResponseTopic
    return old(
        name=topic.name,
        partitions=[
            old.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, error_code=error_code
            )
            for index in topic.partition_indexes
        ],
    )
