"""OffsetForLeaderEpoch (API key 23): the end offset of an epoch, to detect where logs diverge."""

from kwire.codec.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles

Requested = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
TopicAnswer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Answer = TopicAnswer.EpochEndOffset


def refuse(request: OffsetForLeaderEpochRequest, error: KafkaError) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            TopicAnswer(
                topic=topic.topic,
                partitions=[
                    Answer(partition=requested.partition, error_code=error.code)
                    for requested in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(OffsetForLeaderEpochRequest, refuse=refuse)
async def offset_for_leader_epoch(
    context: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    slices = Slices(context.clock.now)
    is_broker = context.is_allowed("ClusterAction", "Cluster", CLUSTER)

    async def answer(topic: str, requested: Requested) -> Answer:
        await slices.pause()
        try:
            if not is_broker:
                context.check_allowed("Describe", "Topic", topic)
            partition = context.replicas.partitions.get(topic, requested.partition)
            partition.check_leader(requested.current_leader_epoch)
            context.replicas.check_lease()
            epoch, end_offset = partition.end_of_epoch(requested.leader_epoch)
        except KafkaError as error:
            return Answer(partition=requested.partition, error_code=error.code)
        return Answer(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)

    return OffsetForLeaderEpochResponse(
        topics=[
            TopicAnswer(
                topic=topic.topic,
                partitions=[await answer(topic.topic, p) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )
