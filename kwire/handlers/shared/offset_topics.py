"""Commits offsets for existing topics, and builds the result for each partition.

A topic is requested by name or by id; both are stored, so that the offsets of a deleted topic are
never used for a recreated topic with the same name. Partitions that do not exist fail alone.
"""

from collections.abc import Callable, Container, Generator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.drive import run_in_slices, run_steps
from kwire.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image import TopicImage
from kwire.types import ZERO_UUID
from kwire.waits import Slow, Steps

RequestTopic = OffsetCommitRequest.OffsetCommitRequestTopic
ResponseTopic = OffsetCommitResponse.OffsetCommitResponseTopic
ResponsePartition = ResponseTopic.OffsetCommitResponsePartition

_AT_ONCE: Final = 500
"""The largest number of partitions that are looked up and answered without a pause."""
A_STEP: Final = 32
"""The number of partitions that one step looks up or answers, about 20 us."""
Commit = Callable[[OffsetCommitRequest], Slow[OffsetCommitResponse] | OffsetCommitResponse]
"""Commits offsets of partitions that exist; raises KafkaError."""


def refuse(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            ResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    ResponseTopic.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error.code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def commit_existing(
    context: Context, request: OffsetCommitRequest, commit: Commit
) -> Steps[OffsetCommitResponse]:
    """Commit the offsets of the partitions that exist; return results for all partitions."""
    count = sum(len(topic.partitions) for topic in request.topics)
    finding, few = _finding(context, request.topics), len(request.topics) <= _AT_ONCE
    images = run_steps(finding) if few else (yield partial(run_in_slices, finding))
    steps = _existing(request.topics, images)
    topics = run_steps(steps) if count <= _AT_ONCE else (yield partial(run_in_slices, steps))
    reply = OffsetCommitResponse(topics=[])
    if topics:
        existing = _commit_of(request, topics)
        try:
            result = commit(existing)
            reply = (yield result.finish) if isinstance(result, Slow) else result
        except KafkaError as error:
            reply = refuse(existing, error)
    answering = _answering(request.topics, images, reply)
    return run_steps(answering) if count <= _AT_ONCE else (yield partial(run_in_slices, answering))


def _answering(
    topics: Sequence[RequestTopic],
    images: Sequence[TopicImage | KafkaError],
    reply: OffsetCommitResponse,
) -> Generator[None, None, OffsetCommitResponse]:
    """Build the response for all topics in small steps.

    ``reply`` has the results of the partitions that exist, in the order of the request.
    """
    results = chain.from_iterable(topic.partitions for topic in reply.topics)
    response = OffsetCommitResponse(topics=[])
    for topic, image in zip(topics, images, strict=True):
        partitions: list[ResponsePartition] = []
        response.topics.append(
            ResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
        existing: Container[int] = ()
        code = UnknownTopicOrPartition.code
        if isinstance(image, KafkaError):
            code = image.code
        else:
            existing = image.partitions
        for first in range(0, len(topic.partitions), A_STEP):
            partitions += [
                next(results)
                if partition.partition_index in existing
                else ResponsePartition(partition_index=partition.partition_index, error_code=code)
                for partition in topic.partitions[first : first + A_STEP]
            ]
            yield
    return response


def _finding(
    context: Context, topics: Sequence[RequestTopic]
) -> Generator[None, None, list[TopicImage | KafkaError]]:
    images = []
    for topic in topics:
        images.append(_find(context, topic))
        yield
    return images


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


def _existing(
    topics: Sequence[RequestTopic], images: Sequence[TopicImage | KafkaError]
) -> Generator[None, None, list[RequestTopic]]:
    """Collect the existing topics, with names, ids and only the existing partitions, in steps."""
    existing: list[RequestTopic] = []
    for topic, image in zip(topics, images, strict=True):
        if isinstance(image, KafkaError):
            continue
        partitions: list[RequestTopic.OffsetCommitRequestPartition] = []
        for first in range(0, len(topic.partitions), A_STEP):
            some = topic.partitions[first : first + A_STEP]
            partitions += [each for each in some if each.partition_index in image.partitions]
            yield
        if partitions:
            existing.append(RequestTopic(name=image.name, topic_id=image.id, partitions=partitions))
    return existing


def _commit_of(request: OffsetCommitRequest, topics: list[RequestTopic]) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        knows_member_epochs=request.knows_member_epochs,
        topics=topics,
    )
