"""DescribeProducers (API key 61): the idempotent and transactional producers of partitions."""

from kwire.codec.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.log.producers import Producer

TopicAnswer = DescribeProducersResponse.TopicResponse
Answer = TopicAnswer.PartitionResponse
State = Answer.ProducerState


def _refuse_partition(index: int, error: KafkaError) -> Answer:
    return Answer(partition_index=index, error_code=error.code, error_message=error.text)


def refuse(request: DescribeProducersRequest, error: KafkaError) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicAnswer(
                name=topic.name,
                partitions=[_refuse_partition(index, error) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


@handles(DescribeProducersRequest, refuse=refuse)
async def describe_producers(
    context: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    slices = Slices(context.clock.now)

    async def answer(topic: str, index: int) -> Answer:
        await slices.pause()
        try:
            context.check_allowed("Read", "Topic", topic)
            # Any replica may answer: kafka-transactions finds hanging transactions broker by
            # broker.
            partition = context.replicas.partitions.get(topic, index)
        except KafkaError as error:
            return _refuse_partition(index, error)
        states = []
        for producer in list(partition.log.producers.all()):
            states.append(_state(producer))
            await slices.pause()
        return Answer(partition_index=index, active_producers=states)

    return DescribeProducersResponse(
        topics=[
            TopicAnswer(
                name=topic.name,
                partitions=[await answer(topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _state(producer: Producer) -> State:
    return State(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.open_from,
    )
