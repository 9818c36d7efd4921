"""OffsetFetch (API key 9): the committed offsets of groups, for some partitions or for all.

Each group fails or succeeds on its own. Topics are identified by name, or by id from version 10
onwards.
"""

from kwire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.drive import Slices
from kwire.errors import (
    KafkaError,
    UnknownTopicId,
)
from kwire.group.requests import no_offset
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.types import ZERO_UUID

RequestGroup = OffsetFetchRequest.OffsetFetchRequestGroup
RequestTopic = RequestGroup.OffsetFetchRequestTopics
Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topic = Group.OffsetFetchResponseTopics


def _refuse_topic(topic: RequestTopic, error: KafkaError) -> Topic:
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[no_offset(index, error.code) for index in topic.partition_indexes],
    )


def refuse(request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[Group(group_id=g.group_id, error_code=error.code) for g in request.groups]
    )


@handles(OffsetFetchRequest, refuse=refuse)
async def offset_fetch(context: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    async def answer(group: RequestGroup) -> Group:
        try:
            context.check_allowed("Describe", "Group", group.group_id)
            if group.topics is None:
                topics = await _all(context, group, request.require_stable)
            else:
                topics = await _some(context, group, group.topics, request.require_stable)
        except KafkaError as error:
            return Group(group_id=group.group_id, error_code=error.code)
        return Group(group_id=group.group_id, topics=topics)

    response = OffsetFetchResponse(groups=[])
    slices = Slices()
    for group in request.groups:
        response.groups.append(await answer(group))
        await slices.pause()
    return response


async def _all(context: Context, group: RequestGroup, require_stable: bool) -> list[Topic]:
    """Return all offsets of a group for the topics that the client may describe."""
    topics = await _fetch(context, group, None, require_stable)
    ids = context.image.topic_ids
    allowed = []
    slices = Slices()
    for topic in topics:
        topic.topic_id = ids.get(topic.name, ZERO_UUID)
        if context.is_allowed("Describe", "Topic", topic.name):
            allowed.append(topic)
        await slices.pause()
    return allowed


async def _some(
    context: Context, group: RequestGroup, requested: list[RequestTopic], require_stable: bool
) -> list[Topic]:
    """Return the offsets of the requested topics; rejected topics come last, as in Kafka."""
    allowed: list[RequestTopic] = []
    names: list[tuple[str, list[int]]] = []
    rejected: list[Topic] = []
    for topic in requested:
        try:
            names.append((_name(context, topic), topic.partition_indexes))
        except KafkaError as error:
            rejected.append(_refuse_topic(topic, error))
        else:
            allowed.append(topic)
    answers = await _fetch(context, group, names, require_stable)
    for answer, topic in zip(answers, allowed, strict=True):
        answer.topic_id = topic.topic_id
    return answers + rejected


async def _fetch(
    context: Context,
    group: RequestGroup,
    names: list[tuple[str, list[int]]] | None,
    require_stable: bool,
) -> list[Topic]:
    return await context.groups.fetch(
        group.group_id,
        names,
        require_stable=require_stable,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
    )


def _name(context: Context, topic: RequestTopic) -> str:
    """Return the name of ``topic``; a topic given by name may be deleted and still have offsets."""
    name = topic.name
    if topic.topic_id != ZERO_UUID:
        image = context.image.topics.get(topic.topic_id)
        if image is None:
            raise UnknownTopicId
        name = image.name
    context.check_allowed("Describe", "Topic", name)
    return name
