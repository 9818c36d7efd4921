"""DeleteRecords (API key 21): moves the start of logs forward.

The new start offset holds at once and is written to disk before the answer; the next round of
retention deletes the segments below it. -1 deletes everything that is committed. Topics that are
only compacted keep their records, as in Kafka.
"""

from kwire.codec.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from kwire.errors import (
    InvalidTopicException,
    KafkaError,
    PolicyViolation,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.types import INTERNAL_TOPICS

Requested = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult
Answer = TopicAnswer.DeleteRecordsPartitionResult


def _refuse_partition(index: int, error: KafkaError) -> Answer:
    return Answer(partition_index=index, low_watermark=-1, error_code=error.code)


def refuse(request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            TopicAnswer(
                name=topic.name,
                partitions=[
                    _refuse_partition(requested.partition_index, error)
                    for requested in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(DeleteRecordsRequest, refuse=refuse)
async def delete_records(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    moved = []

    def answer(topic: str, requested: Requested) -> Answer:
        try:
            context.check_allowed("Delete", "Topic", topic)
            partition = context.replicas.partitions.get_led(topic, requested.partition_index)
            if topic in INTERNAL_TOPICS:
                raise InvalidTopicException
            if not partition.config.cleanup_delete:
                raise PolicyViolation
            low_watermark = context.replicas.delete_before(partition, requested.offset)
            moved.append(partition)
        except KafkaError as error:
            return _refuse_partition(requested.partition_index, error)
        return Answer(partition_index=requested.partition_index, low_watermark=low_watermark)

    topics = [
        TopicAnswer(name=topic.name, partitions=[answer(topic.name, p) for p in topic.partitions])
        for topic in request.topics
    ]
    await context.replicas.keep_starts(moved)
    return DeleteRecordsResponse(topics=topics)
