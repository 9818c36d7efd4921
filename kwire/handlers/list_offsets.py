"""ListOffsets (API key 2): the start and end offsets of a log, and the offset for a timestamp.

-1 is the end (the last stable offset for read_committed), -2 the start, -3 the record with the
largest timestamp, -4 the start of what is stored locally. -5 and -6 refer to remote storage, which
kwire does not have. Other negative numbers are rejected.
"""

from collections import Counter

from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.drive import Slices
from kwire.errors import InvalidRequest, KafkaError, UnsupportedVersion
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.replica.partition import EARLIEST_PENDING_UPLOAD, FetchIsolation

Requested = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
TopicAnswer = ListOffsetsResponse.ListOffsetsTopicResponse
Answer = TopicAnswer.ListOffsetsPartitionResponse

_CONSUMER = -1
_READ_COMMITTED = 1


def _refuse_partition(requested: Requested, error: KafkaError) -> Answer:
    return Answer(partition_index=requested.partition_index, error_code=error.code)


def refuse(request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    topics = [
        TopicAnswer(
            name=each.name, partitions=[_refuse_partition(p, error) for p in each.partitions]
        )
        for each in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


@handles(ListOffsetsRequest, refuse=refuse)
async def list_offsets(context: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    slices = Slices(context.clock.now)
    request_counts = Counter(
        (t.name, p.partition_index) for t in request.topics for p in t.partitions
    )
    if request.replica_id != _CONSUMER:
        isolation = FetchIsolation.LOG_END
    elif request.isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK

    async def answer(topic: str, requested: Requested) -> Answer:
        await slices.pause()
        try:
            context.check_allowed("Describe", "Topic", topic)
            if request_counts[topic, requested.partition_index] > 1:
                raise InvalidRequest
            if requested.timestamp < EARLIEST_PENDING_UPLOAD:
                raise UnsupportedVersion
            partition = context.replicas.partitions.get(topic, requested.partition_index)
            partition.check_leader(requested.current_leader_epoch)
            position = await context.replicas.locate(partition, requested.timestamp, isolation)
        except KafkaError as error:
            return _refuse_partition(requested, error)
        return Answer(
            partition_index=requested.partition_index,
            timestamp=position.timestamp,
            offset=position.offset,
            leader_epoch=position.leader_epoch,
        )

    return ListOffsetsResponse(
        topics=[
            TopicAnswer(
                name=topic.name, partitions=[await answer(topic.name, p) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )
