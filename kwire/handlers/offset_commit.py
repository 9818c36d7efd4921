"""OffsetCommit (API key 8): how far a group has read.

A topic is named, or from version 10 on given by its id; both are stored, so that offsets of a
deleted topic are never taken for a later one's of the same name.
"""

from collections.abc import Iterator, Sequence

from kwire.codec.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kwire.codec.schema import ZERO_UUID
from kwire.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.handlers.dispatch import Context, handles

Asked = OffsetCommitRequest.OffsetCommitRequestTopic
Done = OffsetCommitResponse.OffsetCommitResponseTopic


def _refused(topic: Asked, error: KafkaError) -> Done:
    return Done(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            Done.OffsetCommitResponsePartition(
                partition_index=partition.partition_index, error_code=error.code
            )
            for partition in topic.partitions
        ],
    )


def failed(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refused(topic, error) for topic in request.topics])


@handles(OffsetCommitRequest, versions="2-10", failed=failed)
async def offset_commit(context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    if not context.authorize("Read", "Group", request.group_id):
        raise GroupAuthorizationFailed
    known: list[Asked] = []
    answers: list[Done | None] = []
    for topic in request.topics:
        try:
            known.append(_resolved(context, topic))
        except KafkaError as error:
            answers.append(_refused(topic, error))
        else:
            answers.append(None)
    committed = await _commit(context, request, known)
    return OffsetCommitResponse(topics=[answer or next(committed) for answer in answers])


async def _commit(
    context: Context, request: OffsetCommitRequest, topics: Sequence[Asked]
) -> Iterator[Done]:
    """The outcome of each of these topics; a failure of all concerns only them."""
    if not topics:
        return iter(())
    known = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=list(topics),
    )
    try:
        reply = await context.groups.commit(known)
    except KafkaError as error:
        reply = failed(known, error)
    return iter(reply.topics)


def _resolved(context: Context, topic: Asked) -> Asked:
    """The topic with both its name and its id."""
    image = context.image
    if topic.topic_id != ZERO_UUID:
        found = image.topics.get(topic.topic_id)
        if found is None:
            raise UnknownTopicId
    else:
        found = image.topic(topic.name)
    if found is not None and not context.authorize("Read", "Topic", found.name):
        raise TopicAuthorizationFailed
    if found is None:
        raise UnknownTopicOrPartition
    return Asked(name=found.name, topic_id=found.id, partitions=topic.partitions)
