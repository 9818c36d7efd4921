"""OffsetCommit (API key 8): stores the offsets up to which a group has read.

A topic is given by name, or from version 10 on by id; both are stored, so that the offsets of a
deleted topic are never used for a later topic of the same name.  Partitions that do not exist
fail alone.
"""

from collections.abc import Callable

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import TopicImage
from kwire.types import ZERO_UUID

Asked = OffsetCommitRequest.OffsetCommitRequestTopic
Done = OffsetCommitResponse.OffsetCommitResponseTopic

Codes = dict[tuple[str, int], int]
"""The error code by topic name and partition."""


def _refused(topic: Asked, error: KafkaError) -> Done:
    return _answer(topic, lambda _: error.code)


def _answer(topic: Asked, code: Callable[[int], int]) -> Done:
    return Done(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            Done.OffsetCommitResponsePartition(
                partition_index=spot.partition_index, error_code=code(spot.partition_index)
            )
            for spot in topic.partitions
        ],
    )


def failed(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refused(topic, error) for topic in request.topics])


@handles(OffsetCommitRequest, failed=failed)
async def offset_commit(context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    context.check_allowed("Read", "Group", request.group_id)
    found: list[TopicImage | KafkaError] = [_find(context, topic) for topic in request.topics]
    known = [
        _known(topic, image)
        for topic, image in zip(request.topics, found, strict=True)
        if isinstance(image, TopicImage)
    ]
    codes = await _commit(context, request, [topic for topic in known if topic.partitions])
    missing = UnknownTopicOrPartition.code

    def answer(topic: Asked, image: TopicImage | KafkaError) -> Done:
        if isinstance(image, KafkaError):
            return _refused(topic, image)
        return _answer(topic, lambda index: codes.get((image.name, index), missing))

    pairs = zip(request.topics, found, strict=True)
    return OffsetCommitResponse(topics=[answer(topic, image) for topic, image in pairs])


def _find(context: Context, topic: Asked) -> TopicImage | KafkaError:
    image = context.image
    if topic.topic_id != ZERO_UUID:
        found = image.topics.get(topic.topic_id)
        missing: KafkaError = UnknownTopicId()
    else:
        found = image.topic(topic.name)
        missing = UnknownTopicOrPartition()
    if not context.is_allowed("Read", "Topic", found.name if found else topic.name):
        return TopicAuthorizationFailed()
    return found or missing


def _known(topic: Asked, image: TopicImage) -> Asked:
    """Return the topic with its name and its id, and only the partitions that exist."""
    there = [spot for spot in topic.partitions if spot.partition_index in image.partitions]
    return Asked(name=image.name, topic_id=image.id, partitions=there)


async def _commit(context: Context, request: OffsetCommitRequest, topics: list[Asked]) -> Codes:
    """Commit these partitions and return their error codes; a KafkaError fails only these."""
    if not topics:
        return {}
    known = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=topics,
    )
    try:
        reply = await context.groups.commit(known)
    except KafkaError as error:
        reply = failed(known, error)
    return {
        (topic.name, spot.partition_index): spot.error_code
        for topic in reply.topics
        for spot in topic.partitions
    }
