"""DeleteRecords (API key 21): moves the start of logs forward.

The new log start takes effect at once. Before the response is sent, it is written to disk and
adopted by the followers; the next round of retention deletes the segments below it. -1 deletes
everything that is committed. Topics that are only compacted keep their records, as in Kafka.
"""

from kwire.codec.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from kwire.drive import Slices, give_way
from kwire.errors import (
    InvalidTopicException,
    KafkaError,
    PolicyViolation,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.replica.partition import Partition
from kwire.types import INTERNAL_TOPICS

Requested = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult
Answer = TopicAnswer.DeleteRecordsPartitionResult


def _refuse_partition(requested: Requested, error: KafkaError) -> Answer:
    index = requested.partition_index
    return Answer(partition_index=index, low_watermark=-1, error_code=error.code)


def refuse(request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    topics = [
        TopicAnswer(
            name=each.name, partitions=[_refuse_partition(p, error) for p in each.partitions]
        )
        for each in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


@handles(DeleteRecordsRequest, refuse=refuse)
async def delete_records(context: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    moved: list[tuple[Partition, Answer]] = []
    slices = Slices(context.clock.now)

    async def answer(topic: str, requested: Requested) -> Answer:
        await slices.pause()
        try:
            context.check_allowed("Delete", "Topic", topic)
            partition = context.replicas.partitions.get_led(topic, requested.partition_index)
            if topic in INTERNAL_TOPICS:
                raise InvalidTopicException
            config = partition.config
            if config.cleanup_compact and not config.cleanup_delete:
                raise PolicyViolation
            low_watermark = context.replicas.delete_before(partition, requested.offset)
        except KafkaError as error:
            return _refuse_partition(requested, error)
        result = Answer(partition_index=requested.partition_index, low_watermark=low_watermark)
        moved.append((partition, result))
        return result

    topics = [
        TopicAnswer(
            name=topic.name, partitions=[await answer(topic.name, p) for p in topic.partitions]
        )
        for topic in request.topics
    ]
    replicas = context.replicas
    deadline = replicas.now() + request.timeout_ms / 1000
    starts = [partition.log.log_start for partition, _ in moved]
    await give_way()
    logs = [partition.log for partition, _ in moved]
    failures = await replicas.logs.keep_starts(logs)
    for (partition, result), log, start in zip(moved, logs, starts, strict=True):
        await slices.pause()
        if (failure := failures.get(log)) is not None:
            result.error_code, result.low_watermark = failure.code, -1
            continue
        try:
            left_s = max(0.0, deadline - replicas.now())
            result.low_watermark = await replicas.wait_deleted(partition, start, left_s)
        except KafkaError as error:
            result.error_code = error.code
    return DeleteRecordsResponse(topics=topics)
