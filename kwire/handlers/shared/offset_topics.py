"""The topics of offset commits: which exist, and the answer for each partition.

A topic is given by name or by id; both are stored, so that the offsets of a deleted topic are
never used for a later topic of the same name.  Partitions that do not exist fail alone.
"""

from collections.abc import Awaitable, Callable

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.drive import Slices
from kwire.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image import TopicImage
from kwire.types import ZERO_UUID

RequestTopic = OffsetCommitRequest.OffsetCommitRequestTopic
ResponseTopic = OffsetCommitResponse.OffsetCommitResponseTopic

Codes = dict[tuple[str, int], int]
"""The error code by topic name and partition."""
Commit = Callable[[OffsetCommitRequest], Awaitable[OffsetCommitResponse]]
"""Commits offsets of partitions that exist; raises KafkaError."""


def _refuse_topic(topic: RequestTopic, error: KafkaError) -> ResponseTopic:
    return _answer(topic, lambda _: error.code)


def _answer(topic: RequestTopic, code: Callable[[int], int]) -> ResponseTopic:
    return ResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            ResponseTopic.OffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=code(partition.partition_index),
            )
            for partition in topic.partitions
        ],
    )


def refuse(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refuse_topic(topic, error) for topic in request.topics])


async def commit_existing(
    context: Context, request: OffsetCommitRequest, commit: Commit
) -> OffsetCommitResponse:
    """Commit the offsets of the partitions that exist, and answer for all of them."""
    images: list[TopicImage | KafkaError] = [_find(context, topic) for topic in request.topics]
    existing = [
        _existing(topic, image)
        for topic, image in zip(request.topics, images, strict=True)
        if isinstance(image, TopicImage)
    ]
    codes = await _commit(request, [topic for topic in existing if topic.partitions], commit)
    slices = Slices(context.clock.now)
    missing = UnknownTopicOrPartition.code

    def answer(topic: RequestTopic, image: TopicImage | KafkaError) -> ResponseTopic:
        if isinstance(image, KafkaError):
            return _refuse_topic(topic, image)
        return _answer(topic, lambda index: codes.get((image.name, index), missing))

    response = OffsetCommitResponse(topics=[])
    for topic, image in zip(request.topics, images, strict=True):
        response.topics.append(answer(topic, image))
        await slices.pause()
    return response


def _find(context: Context, topic: RequestTopic) -> TopicImage | KafkaError:
    image = context.image
    if topic.topic_id != ZERO_UUID:
        topic_image = image.topics.get(topic.topic_id)
        missing: KafkaError = UnknownTopicId()
    else:
        topic_image = image.topic(topic.name)
        missing = UnknownTopicOrPartition()
    if not context.is_allowed("Read", "Topic", topic_image.name if topic_image else topic.name):
        return TopicAuthorizationFailed()
    return topic_image or missing


def _existing(topic: RequestTopic, image: TopicImage) -> RequestTopic:
    """Return the topic with its name and its id, and only the partitions that exist."""
    partitions = [
        partition for partition in topic.partitions if partition.partition_index in image.partitions
    ]
    return RequestTopic(name=image.name, topic_id=image.id, partitions=partitions)


async def _commit(
    request: OffsetCommitRequest, topics: list[RequestTopic], commit: Commit
) -> Codes:
    """Commit these partitions and return their error codes; a KafkaError fails only these."""
    if not topics:
        return {}
    existing = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=topics,
    )
    try:
        reply = await commit(existing)
    except KafkaError as error:
        reply = refuse(existing, error)
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in reply.topics
        for partition in topic.partitions
    }
